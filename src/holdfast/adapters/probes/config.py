"""`agent.toml`: what the agent and `holdfast check` are told about a node: which checks, how often, what is expected.

Read by both, from the first of `--config`, `HOLDFAST_AGENT_CONFIG`, `/etc/holdfast/agent.toml`; a missing default file
means all defaults. The agent reads it again at SIGHUP. No time passes here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.adapters.probes.check import Check, Limits, Mode, Profile
from holdfast.adapters.probes.checks import CHECKS
from holdfast.errors import ConfigError
from holdfast.model.toml_lines import Problem as TomlProblem
from holdfast.model.toml_lines import build, config_error, did_you_mean, load_toml

DEFAULT_FILE = Path("/etc/holdfast/agent.toml")
POLL_S = 15.0
SITE = "site/"
PRESETS = ("hyperpod-eks",)
"""Presets that ask something of agents."""


class CheckSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One check, otherwise than it comes. What is not said stays as it is."""

    enabled: bool = True
    """The kill switch."""
    every_s: float | None = None
    """Seconds between two looks of its source; the shortest of the source's checks wins."""
    limit_s: float | None = None
    """Time limit of its source's reading; the longest of the source's checks wins."""
    grace_s: float | None = None
    """Warm-up after boot, or after the source has come to life."""
    looks: int | None = None
    """So many looks in a row must see a problem before it counts."""
    modes: tuple[Mode, ...] | None = None
    """When it is run."""


class LogFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Further logs to watch."""

    path: str
    """A file or a pattern with `*`."""
    kind: str = "output"
    """`output` (of jobs: context only, a job may print anything), `kernel` or `scheduler`."""
    log_rules: str = ""
    """File of HyperPod's log rules for this output; what they find acts on the job that runs on the node."""


class NodeConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    poll_s: float = POLL_S
    """Seconds between two looks at what has no interval of its own."""
    preset: str = ""
    """`hyperpod-eks`: do what that vendor's guide has agents do, which is to believe the kernel's lines in
    /var/log/messages too. Any user can write to syslog: leave it empty elsewhere."""
    metrics: str = ""
    """Where `/metrics` and `/healthz` are served, such as `127.0.0.1:9471`; empty: nowhere."""
    disable: tuple[str, ...] = ()
    """Kill switch: names of checks, or beginnings of names with `*`."""
    validate: tuple[str, ...] = ("prolog", "cpu-stress", "fi-pingpong")
    """What a node must pass before it takes work again: names of checks, beginnings with `*`, or modes. It must fit
    into the policy's `waits.validate_s`: `deep` with DCGM's level 4 needs hours."""
    validate_suites: tuple[str, ...] = ()
    """Suites of `holdfast validate` that a node must pass too before it takes work: `cpu`, `gpu`, `storage`..."""
    validate_baseline: str = ""
    """What they are compared with: a shipped baseline's name, a file, `none`; default: what matches the node."""
    dcgm_exporter: str = ""
    """Page of a dcgm-exporter, such as `http://127.0.0.1:9400/metrics`."""
    dcgm_policy: bool = False
    """Follow violations of the policies that the site has set in DCGM."""
    fabric_provider: str = "efa"
    """libfabric's name of the fabric for the loopback."""
    site_checks: str = "/etc/holdfast/checks.d"
    """Folder of the site's own checks: executables that end as Nagios' plug-ins do; empty: none. `site/NAME` in
    `disable` switches one off."""
    profile: Profile = Profile()
    limits: Limits = Limits()
    checks: dict[str, CheckSettings] = {}
    logs: tuple[LogFile, ...] = ()

    def of(self, name: str) -> CheckSettings:
        """The settings of a check, its kill switches included."""
        known = self.checks.get(name, CheckSettings())
        off = any(matches(pattern, name) for pattern in self.disable)
        return msgspec.structs.replace(known, enabled=False) if off else known

    @property
    def reads_messages(self) -> bool:
        """Are the kernel's lines in /var/log/messages believed?"""
        return self.preset == "hyperpod-eks"

    @property
    def site_off(self) -> tuple[str, ...]:
        """Names of the site's own checks that are switched off."""
        return tuple(word.removeprefix(SITE) for word in self.disable if word.startswith(SITE))


def matches(pattern: str, name: str) -> bool:
    """`gpu-*` and the like."""
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


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
