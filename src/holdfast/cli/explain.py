"""`holdfast explain FILE...`: why a job failed, from any log, with nothing else set up.

Reads each file once (decompressing on the way), matches it against the catalogue, attributes, and prints. The JSON form
is stable and documented in docs/explain.md. Called by the command line; `explain_logs` is the same for other programs.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer
from jinja2 import Environment
from msgspec.structs import replace
from rich.console import Console
from rich.text import Text

from holdfast.adapters.catalogue_files import read_catalogue, read_matcher
from holdfast.adapters.flight_files import read_dumps
from holdfast.adapters.log_files import (
    STDIN,
    count_lines,
    elastic_error,
    find_logs,
    is_stream,
    last_lines,
    line_numbers,
    read_chunks,
)
from holdfast.adapters.log_rule_files import read_log_rules
from holdfast.cli import screen
from holdfast.decide.diagnosis import DiagnosisContext, attribute
from holdfast.detect.catalogue import Catalogue
from holdfast.detect.explain import EvidenceLine, Explanation, explanation, with_novelty
from holdfast.detect.hyperpod_rules import LogRule
from holdfast.detect.lines import is_binary, looks_like_a_log, year_of
from holdfast.detect.log_rule_reading import RuleReading
from holdfast.detect.matcher import Matcher
from holdfast.detect.reading import LogReading, source_of
from holdfast.detect.stack_groups import training_stack
from holdfast.errors import EXIT_FAILED, EXIT_NOTHING_TO_JUDGE, EXIT_OK, NoInputError, UserError
from holdfast.launch.novel_lines import job_folder, read_known
from holdfast.model.evidence import Diagnosis
from holdfast.telemetry.stacks import Frame, parse_dump

STACK_FILE_MAX = 1 << 20
NOVELTY_FILES = 8
NOVELTY_BYTES = 2 << 20
NOVELTY_TAIL = 60
"""Lines at the end of a log among which new ones are looked for."""
END_BYTES = 1 << 16
"""The end of a log that is searched for errors that no rule names."""
SAMPLED_ABOVE = 64 << 20
"""Larger files are read for faults throughout and for progress by samples; standard input from there on."""
END_CHUNKS = 2
"""So many of a log's last pieces hold its end."""


def explain_logs(
    paths: Sequence[str | Path],
    *,
    matcher: Matcher,
    log_rules: Sequence[LogRule] = (),
    warn: Callable[[str], None] = lambda _text: None,
    now: float | None = None,
) -> Explanation:
    """Explain these logs of one job.

    Args:
        paths: files, folders, or `-` for standard input.
        matcher: the compiled catalogue.
        log_rules: HyperPod's rules of the job, which are judged by the times on the lines.
        warn: called with one sentence about each file that could be read only in part.
        now: gives the year to time stamps without one; the present by default.

    Raises:
        NoInputError: a path does not exist, or no file could be read at all.
    """
    names, closed = _readable(find_logs(paths))
    reading = LogReading(matcher.catalogue)
    at = time.time() if now is None else now
    failed: list[str] = []
    for text in closed:
        warn(text)
    dumps = read_dumps([name for name in names if not is_stream(name)])
    reading.beside.flight(list(dumps.values()))
    stacks = {name: frames for name in names if name not in dumps and (frames := _stack(name))}
    reading.beside.stacks(
        {rank: frames for name, frames in stacks.items() if (rank := source_of(name).rank) is not None}
    )
    for name in (name for name in names if name not in dumps and name not in stacks):
        try:
            _read(reading, matcher, name, at, log_rules)
        except UserError as error:
            failed.append(str(error))
            warn(str(error))
    if (closed or failed) and len(failed) == len(names) and not reading.order:
        raise NoInputError((closed + failed)[0])
    reading.finish()
    context = DiagnosisContext(ranks=reading.ranks, progress_at=reading.progress_at, no_job=reading.no_job)
    diagnosis, root = attribute(reading.findings, context)
    _number(reading, diagnosis)
    explained = explanation(reading, diagnosis, root)
    if explained.is_unrecognised:
        return explained
    if explained.names_no_reason:
        explained = with_novelty(explained, _novel(names))
    return explained


def _readable(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """The names that may be read, and one sentence about each of the others."""
    closed = [name for name in names if name != STDIN and not os.access(name, os.R_OK, effective_ids=True)]
    told = [f"{name}: cannot be read: permission denied" for name in closed]
    return [name for name in names if name not in closed], told


def _stack(name: str) -> tuple[Frame, ...]:
    """The calls of the thread that trains, of a stack dump; empty when the file is something else."""
    if is_stream(name) or Path(name).stat().st_size > STACK_FILE_MAX:
        return ()
    return training_stack(parse_dump(Path(name).read_text(encoding="utf-8", errors="replace")))


def _read(reading: LogReading, matcher: Matcher, name: str, at: float, log_rules: Sequence[LogRule]) -> None:
    size, once = 0, is_stream(name)
    if not once:
        # The year of stamps that carry none is that in which the file was last written.
        size, written = Path(name).stat().st_size, Path(name).stat().st_mtime
        at = min(at, written)
    # Lines of what can be read once only are counted on the way; those of files only where lines are shown.
    stream = matcher.stream(source_of(name), sampled=size > SAMPLED_ABOVE, numbered=once)
    number = reading.file("standard input" if name == STDIN else name)
    if (told := elastic_error(name)) is not None:
        text, failed_at = told
        reading.take(number, stream.feed(text, failed_at or at))
        return
    rules = RuleReading(log_rules, year_of(at)) if log_rules else None
    end = b""
    chunks = read_chunks(name)
    first = next(chunks, b"")
    if is_binary(first):
        reading.end(number, len(first) + sum(map(len, chunks)))
        return
    try:
        for data, more in _with_rest(chain((first,), chunks)):
            if not stream.offset and looks_like_a_log(data[:END_BYTES]):
                reading.recognise(number)
            stream.ending = more < END_CHUNKS
            stream.sampled = stream.sampled or stream.offset >= SAMPLED_ABOVE
            end = data[-END_BYTES:] if len(data) >= END_BYTES else (end + data)[-END_BYTES:]
            if rules is not None:
                rules.feed(data)
            if matches := stream.feed(data, at):
                reading.take(number, matches)
    finally:
        reading.take(number, stream.flush(at))
        begin = 0 if len(end) == stream.offset else end.find(b"\n") + 1
        last, place = end[begin:], stream.offset - len(end) + begin
        before = stream.line_no - last.count(b"\n") if once else None
        reading.take(number, matcher.unnamed(source_of(name), last, place, at, lines_before=before))
        reading.end(number, stream.offset)
        if rules is not None:
            reading.ruled(number, rules.end())
            if rules.matched:
                reading.recognise(number)


def _with_rest(chunks: Iterator[bytes]) -> Iterator[tuple[bytes, int]]:
    """Each chunk, and how many follow it, `END_CHUNKS` at the most. A failure comes after the last one."""
    ahead: deque[bytes] = deque()
    failed: UserError | None = None
    try:
        for chunk in chunks:
            ahead.append(chunk)
            if len(ahead) > END_CHUNKS:
                yield ahead.popleft(), END_CHUNKS
    except UserError as error:
        failed = error
    while ahead:
        chunk = ahead.popleft()
        yield chunk, len(ahead)
    if failed is not None:
        raise failed


def _novel(names: Sequence[str]) -> list[EvidenceLine]:
    """Lines at the ends of these logs that their earlier parts never held."""
    found: list[EvidenceLine] = []
    for name in names[:NOVELTY_FILES]:
        if is_stream(name):
            continue
        lines = [line.decode("utf-8", "replace") for line in last_lines(name, NOVELTY_BYTES)]
        begin = max(len(lines) - NOVELTY_TAIL, len(lines) // 2)
        known = read_known(job_folder(Path(name)))
        known.learn(lines[:begin])
        numbered = count_lines(name) - len(lines) + 1
        found += [
            EvidenceLine(name, numbered + begin + index, lines[begin + index][:400], "context", "novelty.line")
            for index in known.strangest(lines[begin:], 3)
        ]
    return found


def _number(reading: LogReading, diagnosis: Diagnosis) -> None:
    """Give line numbers to the findings that will be shown."""
    wanted: dict[int, dict[int, list[int]]] = {}
    findings = list(reading.findings)
    shown = {judged.finding for judged in diagnosis.judged}
    for index, finding in enumerate(findings):
        place = reading.place_of(finding.id)
        if place is not None and finding.id in shown and finding.evidence and not finding.evidence[0].line:
            wanted.setdefault(place[0], {}).setdefault(place[1], []).append(index)
    for number, by_offset in wanted.items():
        numbers = line_numbers(reading.files[number].name, list(by_offset))
        for offset, indexes in by_offset.items():
            for index in indexes:
                first, *others = findings[index].evidence
                evidence = (replace(first, line=numbers.get(offset, 0)), *others)
                findings[index] = replace(findings[index], evidence=evidence)
    reading.findings = tuple(findings)


def explain(
    files: Annotated[
        list[str] | None,
        typer.Argument(help="Logs: files (.gz, .zst, .xz, .bz2 too), folders, or - for standard input."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the documented JSON form.")] = False,
    html: Annotated[Path | None, typer.Option(help="Also write a self-contained page.")] = None,
    rules: Annotated[list[Path] | None, typer.Option(help="A folder of the site's own rules.")] = None,
    log_rules: Annotated[
        Path | None, typer.Option(help="HyperPod's log rules of the job (YAML, JSON; a manifest too).")
    ] = None,
) -> None:
    """Say why a job failed, from any log file: cause, suspects, evidence, and whether a restart would help.

    Exit code 0: the logs are healthy. 1: a fault was found, or something failed whose cause is unknown. 65: nothing in
    them is recognised. 66: no such file.
    """
    paths = files or ([STDIN] if not sys.stdin.isatty() else [])
    if not paths:
        raise UserError("name a log file, a folder, or - for standard input: holdfast explain slurm-4711.out")
    catalogue = read_catalogue(rules or ())
    matcher = read_matcher(catalogue)
    complaints = Console(stderr=True, highlight=False)
    explained = explain_logs(
        paths,
        matcher=matcher,
        log_rules=read_log_rules(log_rules) if log_rules is not None else (),
        warn=lambda text: complaints.print(f"warning: {text}", markup=False),
    )
    if html is not None:
        screen.save(html, page(explained, catalogue))
    if json:
        screen.say_json(explained)
    else:
        show(explained, catalogue, Console(highlight=False))
    if explained.is_unrecognised:
        raise typer.Exit(EXIT_NOTHING_TO_JUDGE)
    raise typer.Exit(EXIT_OK if explained.verdict == "healthy" else EXIT_FAILED)


_STYLES = {"healthy": "bold green", "fault": "bold red", "unknown": "bold yellow"}
_HELPS = {
    True: "yes",
    False: "no: it would meet the same error again",
    None: "cannot be told from these logs",
}


def show(explained: Explanation, catalogue: Catalogue, console: Console) -> None:
    """Print for people. Log text is hostile: it is printed as plain text, control characters taken out."""
    head = Text(explained.verdict.upper(), style=_STYLES[explained.verdict])
    head.append("  " + _plain(explained.summary), style="bold")
    console.print(head)
    if explained.verdict == "healthy" or explained.is_unrecognised:
        console.print(_plain(explained.story), markup=False)
        return
    facts = [
        ("cause", explained.cause),
        ("domain", explained.domain),
        ("suspects", _suspects(explained)),
        ("confidence", f"{explained.confidence:.0%}"),
        ("restart helps", _HELPS[explained.restart_helps]),
        ("what to do", catalogue.get(explained.cause).advice),
    ]
    for name, value in facts:
        if value:
            console.print(Text(f"  {name:<14}", style="dim").append(_plain(value), style="default"))
    console.print()
    console.print(_plain(explained.story), markup=False)
    if explained.evidence:
        console.print()
        for line in explained.evidence:
            place = f"{line.file}:{line.line}" if line.line else line.file
            text = Text(f"  {line.role:<8} ", style="red" if line.role == "root" else "dim")
            console.print(text.append(f"{place}: ", style="cyan").append(_plain(line.text), style="default"))


def _suspects(explained: Explanation) -> str:
    who = explained.suspects
    parts = [", ".join(who.nodes)] if who.nodes else []
    if who.ranks:
        parts.append("rank " + ", ".join(str(rank) for rank in who.ranks))
    if who.gpus:
        parts.append("GPU " + ", ".join(who.gpus))
    return "; ".join(parts)


def _plain(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Holdfast: {{ e.summary }}</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; }
h1 { font-size: 1.4rem; } .fault { color: #b3261e; } .healthy { color: #1b6e37; } .unknown { color: #8a6100; }
dl { display: grid; grid-template-columns: 10rem 1fr; gap: .3rem 1rem; } dt { color: #555; } dd { margin: 0; }
table { border-collapse: collapse; width: 100%; font-size: .85rem; } td { padding: .25rem .5rem; vertical-align: top; }
td.text { font-family: ui-monospace, monospace; overflow-wrap: anywhere; } tr.root { background: #fdecea; }
td.place { white-space: nowrap; color: #555; }
@media (prefers-color-scheme: dark) { body { background: #16181b; color: #e6e6e6; } tr.root { background: #45211f; }
  dt, td.place { color: #a5a5a5; } }
</style></head><body>
<h1><span class="{{ e.verdict }}">{{ e.verdict }}</span>: {{ e.summary }}</h1>
<p>{{ e.story }}</p>
{% if e.verdict != "healthy" %}<dl>
<dt>cause</dt><dd>{{ e.cause }}</dd><dt>domain</dt><dd>{{ e.domain }}</dd>
{% if e.suspects.nodes %}<dt>nodes</dt><dd>{{ e.suspects.nodes | join(", ") }}</dd>{% endif %}
{% if e.suspects.ranks %}<dt>ranks</dt><dd>{{ e.suspects.ranks | join(", ") }}</dd>{% endif %}
{% if e.suspects.gpus %}<dt>GPUs</dt><dd>{{ e.suspects.gpus | join(", ") }}</dd>{% endif %}
<dt>confidence</dt><dd>{{ "%.0f" | format(e.confidence * 100) }} %</dd>
<dt>restart helps</dt><dd>{{ {true: "yes", false: "no", none: "cannot be told"}[e.restart_helps] }}</dd>
{% if advice %}<dt>what to do</dt><dd>{{ advice }}</dd>{% endif %}</dl>{% endif %}
{% if e.evidence %}<h2>Evidence</h2><table>
{% for line in e.evidence %}<tr class="{{ line.role }}"><td>{{ line.role }}</td>
<td class="place">{{ line.file }}:{{ line.line }}</td><td class="text">{{ line.text }}</td><td>{{ line.rule }}</td></tr>
{% endfor %}</table>{% endif %}
</body></html>
"""


def page(explained: Explanation, catalogue: Catalogue) -> str:
    """One self-contained page; every text from a log is escaped."""
    advice = catalogue.get(explained.cause).advice
    return Environment(autoescape=True).from_string(_PAGE).render(e=explained, advice=advice)
