"""Policy as people write it: TOML into a `PolicySet`, with every wrong key named by file, line and nearest right one.

Called by the command line (a site's `holdfast.toml` or policy file), by the engine (`PolicyLoaded`) and by tests of the
presets. Preset texts are handed in by name, so that nothing is read here. No time passes.

::

    preset = "hyperpod-slurm"      # optional base; what follows overrides it
    mode = "act"                   # or a table: [mode] default = "act", reboot = "advise"
    [modes]                        # mode per rung
    [limits] [waits] [node] [brake] [hang] [straggler] [trust] [slo]
    [ladders]                      # trouble = ["restart_in_place", "requeue", "stop"]
    [groups.gpu]                   # any of the above again, for one partition or node group
    [named.patient]                # any of the above again, for jobs that ask for it by name
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.model.evidence import Remedy
from holdfast.model.policy import Mode, Policy, PolicySet
from holdfast.model.toml_lines import Path, Problem, config_error, did_you_mean, find_problems, load_toml
from holdfast.model.toml_lines import build as build_struct

_SETS = ("groups", "named")


def parse_policy(text: str, file: str = "", presets: Mapping[str, str] | None = None) -> PolicySet:
    """Read a policy.

    Args:
        text: the TOML text.
        file: its name as the person gave it, for errors.
        presets: preset texts by name; each is also a policy that jobs may ask for by name.

    Raises:
        ConfigError: names every wrong key, type and value with its line.
    """
    known = dict(presets or {})
    data = load_toml(text, file)
    problems = _problems(data, known)
    if problems:
        raise config_error(problems, text, file)
    bases = {name: _preset(name, known) for name in known}
    site_data = _merged(_base(data, bases), _own(data))
    made = {
        kind: {
            name: _policy(_merged(_base(table, bases) or site_data, _own(table)), name, text, file, (kind, name))
            for name, table in data.get(kind, {}).items()
        }
        for kind in _SETS
    }
    named = {name: _policy(base, name, known[name], f"preset {name}", ()) for name, base in bases.items()}
    site_name = str(data.get("name") or data.get("preset") or "default")
    return PolicySet(
        site=_policy(site_data, site_name, text, file, ()),
        groups=made["groups"],
        named={**named, **made["named"]},
    )


def _problems(data: dict[str, Any], presets: Mapping[str, str]) -> list[Problem]:
    """Everything that is wrong anywhere in the file."""
    found = _table_problems({key: value for key, value in data.items() if key not in _SETS}, (), presets)
    for kind in _SETS:
        tables = data.get(kind, {})
        if not isinstance(tables, dict):
            found.append(Problem((kind,), f"{kind} must be a table of tables: [{kind}.NAME]"))
            continue
        for name, table in tables.items():
            if isinstance(table, dict):
                found.extend(_table_problems(table, (kind, name), presets))
            else:
                message = f"[{kind}] holds one table for each name: write [{kind}.NAME], not {name} = ..."
                found.append(Problem((kind, name), message))
    return found


def _table_problems(table: dict[str, Any], path: Path, presets: Mapping[str, str]) -> list[Problem]:
    found: list[Problem] = []
    preset = table.get("preset")
    if preset is not None and preset not in presets:
        hint = did_you_mean(str(preset), presets)
        found.append(Problem((*path, "preset"), f'there is no preset "{preset}"{hint}'))
    mode = table.get("mode")
    if isinstance(mode, dict):
        found.extend(_mode_problems(mode, (*path, "mode")))
    plain = {key: value for key, value in table.items() if key != "preset"}
    if isinstance(mode, dict):
        del plain["mode"]
    allowed = list(Policy.__struct_fields__)
    unknown = [key for key in plain if key not in allowed]
    where = f" in [{'.'.join(str(part) for part in path)}]" if path else ""
    choices = [*allowed, "preset", *(() if path else _SETS)]
    found.extend(Problem((*path, key), f'unknown key "{key}"{where}{did_you_mean(key, choices)}') for key in unknown)
    known = {key: value for key, value in plain.items() if key in allowed}
    found.extend(find_problems(Policy, known, path))
    return found


def _mode_problems(table: dict[str, Any], path: Path) -> list[Problem]:
    """`[mode]`: `default` and rungs."""
    rungs = [str(remedy) for remedy in Remedy]
    choices = [str(mode) for mode in Mode]
    found: list[Problem] = []
    for key, value in table.items():
        if key != "default" and key not in rungs:
            hint = did_you_mean(key, ["default", *rungs])
            found.append(Problem((*path, key), f'unknown key "{key}" in [{".".join(map(str, path))}]{hint}'))
        elif value not in choices:
            found.append(Problem((*path, key), f'{key} cannot be "{value}"{did_you_mean(str(value), choices)}'))
    return found


def _preset(name: str, presets: Mapping[str, str]) -> dict[str, Any]:
    """A preset's own data. A preset stands alone: it builds on no other and has no groups."""
    file = f"preset {name}"
    data = load_toml(presets[name], file)
    problems = _table_problems(data, (), {})
    if problems:
        raise config_error(problems, presets[name], file)
    return _own(data)


def _base(table: Mapping[str, Any], bases: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    return bases.get(str(table.get("preset", "")), {})


def _own(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table in the form of `Policy`: `[mode]` taken apart into `mode` and `modes`."""
    own = {key: value for key, value in table.items() if key not in _SETS and key != "preset"}
    mode = own.get("mode")
    if isinstance(mode, dict):
        rungs = {key: value for key, value in mode.items() if key != "default"}
        own.pop("mode")
        if "default" in mode:
            own["mode"] = mode["default"]
        own["modes"] = {**rungs, **own.get("modes", {})}
    return own


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Tables are merged key by key; everything else is replaced. A new general mode ends the base's modes of rungs."""
    out = dict(base)
    if "mode" in over and "modes" in out:
        out["modes"] = {}
    for key, value in over.items():
        known = out.get(key)
        out[key] = _merged(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return out


def _policy(data: Mapping[str, Any], name: str, text: str, file: str, path: Path) -> Policy:
    """The struct. Ladders that are not named keep their defaults."""
    defaults = {str(trouble): list(map(str, rungs)) for trouble, rungs in Policy().ladders.items()}
    full = {**data, "name": name, "ladders": {**defaults, **data.get("ladders", {})}}
    policy = build_struct(Policy, full, text, file, path)
    _check_ladders(policy, text, file, path)
    return policy


def _check_ladders(policy: Policy, text: str, file: str, path: Path) -> None:
    """A rung on a ladder where it can do nothing is a mistake that would only show during a fault."""
    node_only = {Remedy.RESET_GPU, Remedy.REBOOT, Remedy.REPLACE, Remedy.RETIRE}
    repairs = [str(rung) for rung in policy.node.ladder if rung not in node_only]
    problems = [
        Problem((*path, "node", "ladder"), f'"{rung}" repairs no node; reset_gpu, reboot, replace and retire do')
        for rung in repairs
    ]
    problems.extend(
        Problem(
            (*path, "ladders", str(trouble)),
            f'"{rung}" is a node\'s rung: it belongs to node.ladder, and "quarantine" to ladders',
        )
        for trouble, rungs in policy.ladders.items()
        for rung in rungs
        if rung in node_only
    )
    if problems:
        raise config_error(problems, text, file)
