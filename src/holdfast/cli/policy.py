"""`holdfast policy check FILE`, `show`, `presets`: is a policy file right, what does it come to, what ships with us.

Reads files only; needs no controller. What the keys mean is in docs/policy.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from msgspec import Struct

from holdfast.adapters.policy_files import packaged_presets, read_policy
from holdfast.cli import answer, screen
from holdfast.cli.answer import Answer, answering
from holdfast.cli.credentials import people_missing
from holdfast.cli.json_forms import form
from holdfast.cli.options import ConfigOption
from holdfast.errors import NotFoundError
from holdfast.model.policy import Policy, PolicySet
from holdfast.model.policy_toml import parse_policy
from holdfast.model.toml_lines import did_you_mean, written
from holdfast.wiring.settings import load_settings

app = answer.group("Check or show a policy file.")


@app.command()
@answering
def check(file: Annotated[Path, typer.Argument(metavar="FILE", help="The policy file (TOML).")]) -> Answer:
    """Check a policy file. Each wrong key or value by file, line and nearest right one. Exit code 78 when wrong."""
    policies, _ = read_policy(file, packaged_presets())
    if why := people_missing(load_settings(), policies):
        screen.say(f"holdfast: {why}", err=True)
    cases = [f"{kind} {', '.join(sorted(names))}" for kind, names in _own_cases(policies).items() if names]
    changed = sum(line.endswith(")") for line in toml_lines(policies.site))
    differ = "1 value differs" if changed == 1 else f"{changed} values differ"
    head = f"{file} is a good policy: mode {policies.site.mode}, {differ} from the defaults."
    tail = "`holdfast policy show FILE` prints what it comes to."
    return Answer(
        lambda: form(file=str(file), ok=True, **_form(policies)),
        lambda: [head, *(f"  {case}" for case in cases), tail],
    )


@app.command()
@answering
def show(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Default: `policy` in holdfast.toml, else the defaults.")
    ] = None,
    *,
    preset: Annotated[str, typer.Option(metavar="NAME", help="A shipped preset instead.")] = "",
    group: Annotated[str, typer.Option(metavar="NAME", help="What holds for this partition.")] = "",
    config: ConfigOption = None,
) -> Answer:
    """Print a policy with its defaults, as a policy file in TOML."""
    name: Path | None = None
    if preset:
        texts = packaged_presets()
        if preset not in texts:
            raise NotFoundError(f'no preset "{preset}"{did_you_mean(preset, texts)}')
        policies = parse_policy(f'preset = "{preset}"\n', "", texts)
    else:
        settings = load_settings(config)
        name = file or settings.path(settings.config.policy)
        policies, _ = read_policy(name, packaged_presets())
    if group and group not in policies.groups:
        raise NotFoundError(f'no group "{group}" in this policy{did_you_mean(group, policies.groups)}')
    chosen = policies.groups[group] if group else policies.site
    return Answer(
        lambda: form(file=str(name) if name else None, **_form(policies)),
        lambda: toml_lines(chosen),
    )


@app.command()
@answering
def presets() -> Answer:
    """List the policies that ship with Holdfast."""
    found = {name: text.partition("\n")[0].lstrip("# ").strip() for name, text in packaged_presets().items()}
    listed = [{"name": name, "about": about} for name, about in found.items()]
    made = screen.table("preset", "what it is for", rows=found.items(), keep=("preset",))
    hint = 'Take one as the base of yours with `preset = "NAME"`; `holdfast policy show --preset NAME` prints it.'
    return Answer(lambda: form(presets=listed), lambda: [made, hint])


def _own_cases(policies: PolicySet) -> dict[str, set[str]]:
    """Groups and names that the file itself makes; presets are there always."""
    return {"groups": set(policies.groups), "named": set(policies.named) - set(packaged_presets())}


def _form(policies: PolicySet) -> dict[str, Any]:
    own = _own_cases(policies)
    return {
        "policy": msgspec.to_builtins(policies.site)
        | {
            "groups": {name: msgspec.to_builtins(policies.groups[name]) for name in sorted(own["groups"])},
            "named": {name: msgspec.to_builtins(policies.named[name]) for name in sorted(own["named"])},
        }
    }


def toml_lines(policy: Policy) -> list[str]:
    """A policy as TOML, tables last; a value that differs from the default says what that is."""
    top: list[str] = []
    tables: list[str] = []
    default = Policy()
    for field in msgspec.structs.fields(Policy):
        value, usual = getattr(policy, field.name), getattr(default, field.name)
        if isinstance(value, Struct):
            tables += ["", f"[{field.name}]"]
            tables += [_line(part, getattr(value, part), getattr(usual, part)) for part in value.__struct_fields__]
        elif isinstance(value, dict):
            if value:
                tables += ["", f"[{field.name}]"]
                tables += [_line(str(key), part, usual.get(key)) for key, part in value.items()]
        elif field.name != "name":
            top.append(_line(field.name, value, usual))
    return top + tables


def _line(key: str, value: object, usual: object) -> str:
    if value == usual:
        return f"{key} = {written(value)}"
    return f"{key} = {written(value)}  # ({'default: ' + written(usual) if usual is not None else 'default: as mode'})"
