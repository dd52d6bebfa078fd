r"""The catalogue: what each line means, as data. Rules are TOML; this module checks them and gives them names.

`adapters/catalogue_files` reads the packaged folder and site folders and hands over their bytes; agents, launchers
and `holdfast explain` build one `Catalogue` and one `Matcher` from it. Nothing here reads a file or a clock.

A rule file looks like this (defaults of the file first, then one `[[rule]]` each)::

    family = "nccl"
    [[rule]]
    id = "nccl.watchdog.timeout"
    domain = "network"
    role = "root"
    kind = "nccl-timeout"
    title = "A collective did not finish in time"
    pattern = '''Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(?P<seq>\d+)'''
    matches = ["..."]
    rejects = ["..."]

`[[xid]]` and `[[sxid]]` tables name NVIDIA's codes; each becomes a rule `nvidia.xid.N` without a pattern of its own.
"""

from __future__ import annotations

import functools
import hashlib
import re
import tomllib
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from holdfast.detect.meaning import KEYS, PACKAGED, parsed
from holdfast.detect.patterns import NoCoreError, catastrophe, core
from holdfast.detect.toml_places import TomlPlaces, nearest
from holdfast.errors import ConfigError
from holdfast.model.evidence import Domain, Remedy, Role, Severity

CAPTURES = frozenset(
    {
        "node", "rank", "local_rank", "gpu", "gpu_id", "pid", "job", "step", "total", "epoch", "loss", "grad_norm",
        "lr", "lr_text", "link", "path", "peer", "device", "hca", "xid", "code", "signal", "seq", "op", "timeout_ms",
        "elapsed_s", "elapsed_ms", "tokens_per_s", "samples_per_s", "steps_per_s", "tflops", "mfu", "type",
        "message", "function", "line", "file", "what", "verdict", "reason", "serial", "done", "started",
        "last_enqueued", "last_completed", "host", "module", "rest", "it_s", "s_it", "sub", "sev", "unit", "intr",
        "err", "regs", "name", "count", "size", "percent", "user", "state", "accuracy",
    }
)  # fmt: skip
"""Names that a pattern may capture; anything else is a slip of the pen."""
UNNAMED = "unnamed-error"
"""Kind of rules that know an error by its severity word alone; only the ends of logs are searched for them."""


class StreamKind(StrEnum):
    """What a stream of lines is. A job cannot forge kernel lines in its own output, unless the stream is ANY."""

    OUTPUT = "output"
    KERNEL = "kernel"
    SCHEDULER = "scheduler"
    AGENT = "agent"
    ANY = "any"


class Rule(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that a line (or an exit, or a silence) can mean."""

    id: str
    family: str = ""
    kind: str = "crash"
    """Class for reports: crash, segfault, oom, xid, ecc, network, nccl-timeout, hang, nan, filesystem, preempt, ..."""
    domain: Domain = Domain.UNKNOWN
    role: Role = Role.CONTEXT
    severity: Severity = Severity.ERROR
    remedy: Remedy = Remedy.NONE
    title: str = ""
    advice: str = ""
    patterns: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    """The line is not this rule's when one of these matches."""
    cores: tuple[str, ...] = ()
    """Hyperscan expressions that point at candidate lines; derived from the patterns unless given."""
    where: tuple[StreamKind, ...] = (StreamKind.ANY,)
    record: str = ""
    """Multi-line record that this line begins: `traceback`, `elastic`, `nvrm`."""
    unfinished: str = ""
    """The rule that a record's first line is told by while its end is missing; empty: this one."""
    decode: str = ""
    """`xid`, `sxid`: the matched code chooses the rule `nvidia.xid.N`."""
    precedence: int = 0
    """Which of several rules owns one line: the highest."""
    rate_per_min: int = 60
    reference: str = ""
    matches: tuple[str, ...] = ()
    rejects: tuple[str, ...] = ()
    quick_after: str = ""
    """A progress rule's number can be read without its pattern: the core ends one byte after the number, and this is
    the byte before it. Only used on many such lines at once."""
    remark: bool = False
    """Told beside the line's owner, before it, rather than in its place."""
    synthetic: bool = False
    """Made by detectors from exits, silences and samples; no line matches it."""
    file: str = ""
    at_line: int = 0

    @property
    def captures(self) -> tuple[str, ...]:
        """Names that the patterns capture."""
        return _captured(self.patterns)

    def reads(self, kind: StreamKind) -> bool:
        """Whether lines of this kind of stream are judged by the rule."""
        return kind is StreamKind.ANY or StreamKind.ANY in self.where or kind in self.where


@functools.cache
def _captured(patterns: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for pattern in patterns for name in re.compile(pattern).groupindex))


class Catalogue:
    """All rules, by id. Built by `load_catalogue`.

    Attributes:
        rules: id -> rule, in file order.
        scanned: the rules with patterns, in file order; their positions are the matcher's numbers.
        digest: hash of everything that a compiled database depends on.
    """

    def __init__(self, rules: Mapping[str, Rule]) -> None:
        self.rules = dict(rules)
        self.scanned = tuple(rule for rule in self.rules.values() if rule.patterns)
        text = "\n".join(f"{rule.id}\t{rule.role}\t{core_text}" for rule in self.scanned for core_text in rule.cores)
        self.digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def __len__(self) -> int:
        return len(self.rules)

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules.values())

    def __contains__(self, rule_id: str) -> bool:
        return self.find(rule_id) is not None

    def find(self, rule_id: str) -> Rule | None:
        """The rule of this id, or the family rule `a.b.*` under that id; None when there is neither."""
        if (rule := self.rules.get(rule_id)) is not None:
            return rule
        head, _, _ = rule_id.rpartition(".")
        while head:
            if (family := self.rules.get(head + ".*")) is not None:
                return replace(family, id=rule_id, title=family.title.replace("{n}", rule_id[len(head) + 1 :]))
            head, _, _ = head.rpartition(".")
        return None

    def get(self, rule_id: str) -> Rule:
        """As `find`, but an id that nobody wrote down gets a bare rule of unknown domain."""
        return self.find(rule_id) or Rule(id=rule_id, title=rule_id)


_STR, _STRS, _INT, _BOOL = "a string", "a list of strings", "a whole number", "true or false"
_ENUMS: dict[str, type[StrEnum]] = {"domain": Domain, "role": Role, "severity": Severity, "remedy": Remedy}
_DEFAULT_KEYS: dict[str, str] = {
    "family": _STR,
    "kind": _STR,
    "domain": _STR,
    "role": _STR,
    "severity": _STR,
    "remedy": _STR,
    "where": _STRS,
    "reference": _STR,
    "advice": _STR,
    "rate_per_min": _INT,
    "precedence": _INT,
}
_RULE_KEYS: dict[str, str] = _DEFAULT_KEYS | {
    "id": _STR,
    "title": _STR,
    "pattern": _STR,
    "patterns": _STRS,
    "unless": _STRS,
    "core": _STR,
    "cores": _STRS,
    "record": _STR,
    "unfinished": _STR,
    "decode": _STR,
    "quick_after": _STR,
    "matches": _STRS,
    "rejects": _STRS,
    "synthetic": _BOOL,
    "remark": _BOOL,
    "override": _BOOL,
}
_CODE_KEYS: dict[str, str] = {
    "code": _INT,
    "name": _STR,
    "title": _STR,
    "kind": _STR,
    "domain": _STR,
    "role": _STR,
    "severity": _STR,
    "remedy": _STR,
    "advice": _STR,
}
_TOP_KEYS: dict[str, str] = _DEFAULT_KEYS | {"disable": _STRS, "rule": "tables", "xid": "tables", "sxid": "tables"}
_CHOICES: dict[str, frozenset[str]] = {
    "record": frozenset({"traceback", "elastic", "nvrm", ""}),
    "decode": frozenset({"xid", "sxid", ""}),
}


def load_catalogue(sources: Mapping[str, bytes]) -> Catalogue:
    """Build the catalogue from rule files, in the order given (packaged ones first, then the site's).

    Args:
        sources: file name as a person knows it -> TOML bytes.

    Raises:
        ConfigError: any key, type, value or pattern that is not understood; all of them are named, one per line,
            each with file, line and the nearest right word.
    """
    rules: dict[str, Rule] = {}
    errors: list[ConfigError] = []
    for name, data in sources.items():
        _RuleFile(name, errors).load(data, rules)
    if errors:
        first = errors[0]
        if len(errors) == 1:
            raise first
        everything = ConfigError("\n".join(str(error) for error in errors))
        everything.file, everything.line = first.file, first.line
        raise everything
    return Catalogue(rules)


class _RuleFile:
    """One file on its way into the catalogue: collects what is wrong with it."""

    def __init__(self, name: str, errors: list[ConfigError]) -> None:
        self.name = name
        self.errors = errors
        self.meaning = frozenset({*KEYS, "group"}) if name.startswith(PACKAGED) else frozenset()
        """Keys of the files that ship with Holdfast, which `Meanings` reads."""
        self.places = TomlPlaces("")
        self.table = ("", 0)

    def wrong(self, message: str, key: str = "") -> None:
        self.errors.append(ConfigError(message, file=self.name, line=self.places.line(*self.table, key)))

    def load(self, data: bytes, rules: dict[str, Rule]) -> None:
        try:
            top = parsed(data)
        except UnicodeDecodeError as error:
            self.errors.append(ConfigError(f"not UTF-8 text: {error.reason}", file=self.name))
            return
        except tomllib.TOMLDecodeError as error:
            place = re.search(r"at line (\d+)", str(error))
            self.errors.append(
                ConfigError(f"not TOML: {error}", file=self.name, line=int(place.group(1)) if place else 0)
            )
            return
        self.places = TomlPlaces(data.decode())
        defaults = {k: v for k, v in self.checked(top, _TOP_KEYS).items() if k in _DEFAULT_KEYS}
        for gone in top.get("disable", ()):
            if rules.pop(gone, None) is None:
                self.wrong(f'no rule "{gone}" to disable{nearest(gone, rules)}', "disable")
        for index, table in enumerate(top.get("rule", ())):
            self.table = ("rule", index)
            self.add(self.rule(defaults | self.checked(table, _RULE_KEYS)), rules, override=bool(table.get("override")))
        for what in ("xid", "sxid"):
            for index, table in enumerate(top.get(what, ())):
                self.table = (what, index)
                self.add(self.code_rule(what, defaults | self.checked(table, _CODE_KEYS)), rules, override=True)

    def checked(self, table: Any, known: Mapping[str, str]) -> dict[str, Any]:
        """The entries of the table that are understood; the others are reported."""
        if not isinstance(table, dict):
            self.wrong("expected a table")
            return {}
        good: dict[str, Any] = {}
        for key, value in table.items():
            if key in self.meaning:
                continue
            if key not in known:
                self.wrong(f'unknown key "{key}"{nearest(key, known)}', key)
            elif not _is(value, known[key]):
                self.wrong(f"{key} must be {known[key]}, not {value!r:.60}", key)
            elif key in _ENUMS and value not in {str(member) for member in _ENUMS[key]}:
                members = [str(member) for member in _ENUMS[key]]
                self.wrong(f'{key} "{value}" is not one of {", ".join(members)}{nearest(value, members)}', key)
            elif key in _CHOICES and value not in _CHOICES[key]:
                self.wrong(f'{key} "{value}" is not known{nearest(value, _CHOICES[key])}', key)
            else:
                good[key] = value
        return good

    def add(self, rule: Rule | None, rules: dict[str, Rule], *, override: bool) -> None:
        if rule is None:
            return
        if (other := rules.get(rule.id)) is not None and not override:
            self.wrong(
                f'rule "{rule.id}" is already defined in {other.file}:{other.at_line}; set override = true', "id"
            )
            return
        rules[rule.id] = rule

    def rule(self, entries: dict[str, Any]) -> Rule | None:
        before = len(self.errors)
        rule_id = entries.get("id", "")
        if not re.fullmatch(r"[a-z0-9_]+(\.[a-z0-9_]+)*(\.\*)?", rule_id):
            self.wrong(f'id "{rule_id}" must be words of a-z, 0-9 and _ joined by dots', "id")
        patterns = _listed(entries, "pattern", "patterns")
        if not patterns and not entries.get("synthetic"):
            self.wrong(f'rule "{rule_id}" has no pattern', "id")
        for key, group in (("pattern", patterns), ("unless", list(entries.get("unless", ())))):
            for pattern in group:
                self.check_pattern(rule_id, key, pattern)
        if len(self.errors) > before:
            return None
        cores = _listed(entries, "core", "cores") or self.derived_cores(rule_id, patterns)
        return Rule(
            id=rule_id,
            patterns=tuple(patterns),
            unless=tuple(entries.get("unless", ())),
            cores=tuple(cores),
            where=self.kinds(entries.get("where", ["any"])),
            matches=tuple(entries.get("matches", ())),
            rejects=tuple(entries.get("rejects", ())),
            file=self.name,
            at_line=self.places.line(*self.table),
            **_plain(entries),
        )

    def check_pattern(self, rule_id: str, key: str, pattern: str) -> None:
        try:
            compiled = re.compile(pattern, re.ASCII)
        except re.error as error:
            self.wrong(f'rule "{rule_id}": not a regular expression: {error}', key)
            return
        if why := catastrophe(pattern):
            self.wrong(f'rule "{rule_id}": pattern refused, it can take catastrophic time: {why}', key)
        for group in compiled.groupindex:
            if group not in CAPTURES:
                self.wrong(f'rule "{rule_id}": unknown capture "{group}"{nearest(group, CAPTURES)}', key)

    def derived_cores(self, rule_id: str, patterns: list[str]) -> list[str]:
        cores = []
        for pattern in patterns:
            try:
                cores.append(core(pattern))
            except NoCoreError as error:
                self.wrong(f'rule "{rule_id}": cannot be scanned at speed: {error}; give one as core = ...', "pattern")
        return cores

    def kinds(self, names: list[str]) -> tuple[StreamKind, ...]:
        members = [str(member) for member in StreamKind]
        for name in names:
            if name not in members:
                self.wrong(f'where "{name}" is not one of {", ".join(members)}{nearest(name, members)}', "where")
        return tuple(StreamKind(name) for name in names if name in members)

    def code_rule(self, what: str, entries: dict[str, Any]) -> Rule | None:
        if "code" not in entries:
            self.wrong(f"[[{what}]] needs a code")
            return None
        code = entries["code"]
        label = {"xid": "Xid", "sxid": "SXid"}[what]
        title = entries.get("title") or entries.get("name", "")
        plain = _plain(entries) | {"title": f"{label} {code}: {title}"}
        return Rule(
            id=f"nvidia.{what}.{code}",
            where=(StreamKind.KERNEL,),
            synthetic=True,
            file=self.name,
            at_line=self.places.line(*self.table),
            **plain,
        )


def _plain(entries: dict[str, Any]) -> dict[str, Any]:
    """Entries whose value goes into the rule as it is, enums made of their words."""
    names = (
        "family",
        "kind",
        "title",
        "advice",
        "record",
        "unfinished",
        "decode",
        "quick_after",
        "precedence",
        "rate_per_min",
        "reference",
    )
    plain: dict[str, Any] = {name: entries[name] for name in (*names, "synthetic", "remark") if name in entries}
    return plain | {name: enum(entries[name]) for name, enum in _ENUMS.items() if name in entries}


def _listed(entries: dict[str, Any], one: str, many: str) -> list[str]:
    return ([entries[one]] if one in entries else []) + list(entries.get(many, ()))


def _is(value: Any, wanted: str) -> bool:
    if wanted == _STR:
        return isinstance(value, str)
    if wanted == _INT:
        return isinstance(value, int) and not isinstance(value, bool)
    if wanted == _BOOL:
        return isinstance(value, bool)
    return isinstance(value, list) and (wanted == "tables" or all(isinstance(item, str) for item in value))
