"""`holdfast catalogue list|show|test|lint`: the rules that logs are matched by, the packaged ones and a site's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from holdfast.adapters.catalogue_files import read_catalogue, site_sources
from holdfast.cli import screen
from holdfast.cli.json_forms import fields_of
from holdfast.cli.screen import console
from holdfast.detect.catalogue import Catalogue, Rule, StreamKind, load_catalogue
from holdfast.detect.matcher import Matcher, StreamSource
from holdfast.detect.meaning import packaged_sources
from holdfast.detect.proof import Complaint, prove
from holdfast.errors import EXIT_CONFIG, EXIT_FAILED, ConfigError, NotFoundError

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)

Rules = Annotated[list[Path] | None, typer.Option("--rules", help="A folder of the site's own rules, or one file.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_rules(
    family: Annotated[str, typer.Option(help="Only rules of this family.")] = "",
    *,
    rules: Rules = None,
    json: Json = False,
) -> None:
    """List the rules: id, domain, role, remedy, what it means."""
    chosen = [rule for rule in read_catalogue(rules or ()) if not family or rule.family == family]
    if json:
        screen.say_json([_brief(rule) for rule in chosen])
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("rule", "domain", "role", "remedy", "what it means"):
        table.add_column(heading, overflow="fold")
    for rule in chosen:
        table.add_row(rule.id, rule.domain, rule.role, rule.remedy, rule.title)
    console().print(table)
    console().print(f"{len(chosen)} rules")


@app.command()
def show(
    rule_id: Annotated[str, typer.Argument(metavar="RULE", help="The rule's id, such as nvidia.xid.74.")],
    *,
    rules: Rules = None,
    json: Json = False,
) -> None:
    """Show one rule with its patterns, examples, look-alikes and source."""
    catalogue = read_catalogue(rules or ())
    rule = catalogue.find(rule_id)
    if rule is None:
        raise NotFoundError(f'no rule "{rule_id}"; `holdfast catalogue list` names them all')
    if json:
        screen.say_json(_brief(rule) | {"patterns": list(rule.patterns), "matches": list(rule.matches)})
        return
    out = console()
    for name, value in _facts(rule):
        for index, text in enumerate(value):
            out.print(f"{name if not index else '':<12}{text}", soft_wrap=True)


@app.command("test")
def run_examples(
    line: Annotated[
        str, typer.Argument(help="A log line: which rule owns it? Without one, all examples are run.")
    ] = "",
    *,
    rules: Rules = None,
) -> None:
    """Run the rules' own examples, or say which rule owns a line."""
    catalogue = read_catalogue(rules or ())
    out = console()
    if line:
        stream = Matcher(catalogue).stream(StreamSource(kind=StreamKind.ANY))
        matches = stream.feed(line.encode() + b"\n", 0.0)
        for match in matches:
            told = ", ".join(f"{name}={value}" for name, value in match.captures.items())
            out.print(
                f"{match.rule.id}: {match.rule.title} ({match.rule.domain}, {match.rule.role}) {told}", soft_wrap=True
            )
        if not matches:
            out.print("no rule owns this line")
            raise typer.Exit(EXIT_FAILED)
        return
    complaints = prove(catalogue)
    _report(complaints, catalogue)


@app.command()
def lint(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Rule files or folders; the packaged rules by default.")
    ] = None,
) -> None:
    """Check rule files. Keys, values, patterns that could take catastrophic time, examples."""
    own = site_sources(paths or ())
    try:
        catalogue = load_catalogue(packaged_sources() | own)
    except ConfigError as error:
        for text in str(error).splitlines():
            console().print(text, soft_wrap=True)
        raise typer.Exit(EXIT_CONFIG) from None
    _report([complaint for complaint in prove(catalogue) if not own or complaint.rule.file in own], catalogue)


def _report(complaints: list[Complaint], catalogue: Catalogue) -> None:
    out = console()
    for complaint in complaints:
        rule = complaint.rule
        out.print(f'{rule.file}:{rule.at_line}: rule "{rule.id}": {complaint.what}', soft_wrap=True)
    examples = sum(len(rule.matches) + len(rule.rejects) for rule in catalogue)
    out.print(f"{len(catalogue)} rules, {examples} examples, {len(complaints)} complaints")
    if complaints:
        raise typer.Exit(EXIT_FAILED)


def _brief(rule: Rule) -> dict[str, object]:
    names = "id family kind domain role severity remedy title advice captures file"
    return fields_of(rule, names) | {"line": rule.at_line}


def _facts(rule: Rule) -> list[tuple[str, list[str]]]:
    facts = [
        ("rule", [f"{rule.id} ({rule.file}:{rule.at_line})"]),
        ("means", [rule.title]),
        ("advice", [rule.advice]),
        ("domain", [str(rule.domain)]),
        ("role", [f"{rule.role}, {rule.severity}, remedy {rule.remedy}"]),
        ("read in", [", ".join(rule.where)] if rule.patterns else ["made by detectors, not from lines"]),
        ("captures", [", ".join(rule.captures)]),
        ("pattern", list(rule.patterns)),
        ("unless", list(rule.unless)),
        ("matches", list(rule.matches)),
        ("not", list(rule.rejects)),
        ("source", [rule.reference]),
    ]
    return [(name, [text for text in value if text]) for name, value in facts]
