"""`agent.toml`: what the agent and `holdfast check` are told about a node: which checks, how often, what is expected.

Read by both, from the first of `--config`, `HOLDFAST_AGENT_CONFIG`, `/etc/holdfast/agent.toml`; a missing default file
means all defaults. The agent reads it again at SIGHUP. No time passes here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.adapters.probes.check import SITE, Check, Mode, NodeConfig, matches
from holdfast.adapters.probes.checks import CHECKS
from holdfast.errors import ConfigError
from holdfast.model.toml_lines import Problem as TomlProblem
from holdfast.model.toml_lines import build, config_error, did_you_mean, load_toml

DEFAULT_FILE = Path("/etc/holdfast/agent.toml")
PRESETS = ("hyperpod-eks",)
"""Presets that ask something of agents."""


def chosen(words: tuple[str, ...]) -> list[Check]:
    """Checks by names, beginnings with `*`, and modes, in the registry's order, each once.

    Raises:
        ConfigError: a word that is none of these, with the nearest right one.
    """
    wanted: set[str] = set()
    for word in words:
        if word in {mode.value for mode in Mode}:
            wanted |= {check.name for check in CHECKS.values() if Mode(word) in check.modes}
            continue
        found = {name for name in CHECKS if matches(word, name)}
        if not found:
            raise ConfigError(f'there is no check "{word}"{did_you_mean(word, [*CHECKS, *Mode])}')
        wanted |= found
    return [check for name, check in CHECKS.items() if name in wanted]


def load_config(path: Path | None = None) -> NodeConfig:
    """Read a node's configuration.

    Args:
        path: the file; None: the default one, which may be missing.

    Raises:
        ConfigError: a wrong key, value or check's name, by file and line; or a named file that cannot be read.
    """
    file = path or DEFAULT_FILE
    try:
        text = file.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError) as error:
        if path is None:
            return NodeConfig()
        raise ConfigError("there is no such file", file=str(file)) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}", file=str(file)) from error
    return parse_config(text, str(file))


def parse_config(text: str, file: str = "") -> NodeConfig:
    """As `load_config`, of a text."""
    data: dict[str, Any] = load_toml(text, file)
    config = build(NodeConfig, data, text, file)
    problems = [
        TomlProblem(("checks", name), f'there is no check "{name}"{did_you_mean(name, CHECKS)}')
        for name in config.checks
        if name not in CHECKS
    ]
    for key in ("disable", "validate"):
        for word in getattr(config, key):
            if key == "disable" and word.startswith(SITE):
                continue
            try:
                chosen((word,))
            except ConfigError as error:
                problems.append(TomlProblem((key,), str(error)))
    if config.preset and config.preset not in PRESETS:
        problems.append(TomlProblem(("preset",), f'preset cannot be "{config.preset}"; known: {", ".join(PRESETS)}'))
    if config.poll_s <= 0:
        problems.append(TomlProblem(("poll_s",), f"poll_s must be above zero, not {config.poll_s:g}"))
    problems += [
        TomlProblem(("logs", index, "kind"), f'kind cannot be "{log.kind}"; known: output, kernel, scheduler')
        for index, log in enumerate(config.logs)
        if log.kind not in {"output", "kernel", "scheduler"}
    ]
    if problems:
        raise config_error(problems, text, file)
    return config
