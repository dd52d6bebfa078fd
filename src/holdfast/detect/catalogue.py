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
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.detect.meaning import KEYS, PACKAGED, parsed
from holdfast.detect.patterns import NoCoreError, catastrophe, core
from holdfast.errors import ConfigError
from holdfast.model.evidence import Domain, Remedy, Role, Severity
from holdfast.model.toml_lines import Path, Places, Problem, config_error, did_you_mean, load_toml, why_refused

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


class Said(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a rule file may say of a rule, of one of NVIDIA's codes, and of all rules in it."""

    kind: str = "crash"
    """Class for reports: crash, segfault, oom, xid, ecc, network, nccl-timeout, hang, nan, filesystem, preempt, ..."""
    domain: Domain = Domain.UNKNOWN
    role: Role = Role.CONTEXT
    severity: Severity = Severity.ERROR
    remedy: Remedy = Remedy.NONE
    advice: str = ""


class Common(Said, frozen=True, kw_only=True, omit_defaults=True):
    """What a rule file may say of a rule, and of all rules in it."""

    family: str = ""
    where: tuple[StreamKind, ...] = (StreamKind.ANY,)
    precedence: int = 0
    """Which of several rules owns one line: the highest."""
    rate_per_min: int = 60
    reference: str = ""


class Written(Common, frozen=True, kw_only=True, omit_defaults=True):
    """What a rule file may say of a rule."""

    id: str
    title: str = ""
    patterns: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    """The line is not this rule's when one of these matches."""
    cores: tuple[str, ...] = ()
    """Hyperscan expressions that point at candidate lines; derived from the patterns unless given."""
    record: Literal["", "traceback", "elastic", "nvrm"] = ""
    """Multi-line record that this line begins: `traceback`, `elastic`, `nvrm`."""
    unfinished: str = ""
    """The rule that a record's first line is told by while its end is missing; empty: this one."""
    decode: Literal["", "xid", "sxid"] = ""
    """`xid`, `sxid`: the matched code chooses the rule `nvidia.xid.N`."""
    matches: tuple[str, ...] = ()
    rejects: tuple[str, ...] = ()
    quick_after: str = ""
    """A progress rule's number can be read without its pattern: the core ends one byte after the number, and this is
    the byte before it. Only used on many such lines at once."""
    remark: bool = False
    """Told beside the line's owner, before it, rather than in its place."""
    synthetic: bool = False
    """Made by detectors from exits, silences and samples; no line matches it."""


class Rule(Written, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that a line (or an exit, or a silence) can mean."""

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


class _RuleTable(Written, frozen=True, kw_only=True):
    """`[[rule]]`: a single pattern or core may stand without a list."""

    pattern: str = ""
    core: str = ""
    override: bool = False


class _CodeTable(Said, frozen=True, kw_only=True):
    """`[[xid]]` or `[[sxid]]`."""

    code: int
    name: str = ""
    title: str = ""


class _Head(Common, frozen=True, kw_only=True):
    """What stands above the first table: which rules the file takes away, and what those here have in common."""

    disable: list[str] = []


_LABELS = {"xid": "Xid", "sxid": "SXid"}
_T = TypeVar("_T")


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
        try:
            _RuleFile(name, data).load(rules)
        except ConfigError as error:
            errors.append(error)
    if errors:
        everything = ConfigError("\n".join(str(error) for error in errors))
        everything.file, everything.line = errors[0].file, errors[0].line
        raise everything
    return Catalogue(rules)


class _RuleFile:
    """One file on its way into the catalogue: collects what is wrong with it."""

    def __init__(self, name: str, data: bytes) -> None:
        self.name = name
        try:
            self.text = data.decode()
        except UnicodeDecodeError as error:
            raise ConfigError(f"not UTF-8 text: {error.reason}", file=name) from error
        self.data = data
        self.meaning = frozenset({*KEYS, "group"}) if name.startswith(PACKAGED) else frozenset()
        """Keys of the files that ship with Holdfast, which `Meanings` reads."""
        self.problems: list[Problem] = []
        self.places = Places(self.text)

    def load(self, rules: dict[str, Rule]) -> None:
        """Add the file's rules, and take away those that it disables. Raises ConfigError with all that is wrong."""
        top = dict(parsed(self.data) if self.meaning else load_toml(self.text, self.name))
        tables = {what: self.tables(what, top.pop(what, [])) for what in ("rule", *_LABELS)}
        head = self.checked(_Head, top, ())
        for gone in head.disable if head else ():
            if rules.pop(gone, None) is None:
                self.wrong(("disable",), f'no rule "{gone}" to disable{did_you_mean(gone, rules)}')
        top = {key: value for key, value in top.items() if key != "disable"} if head else {}
        for what, found in tables.items():
            for index, table in enumerate(found):
                path: Path = (what, index)
                if what != "rule" and (code := self.checked(_CodeTable, table, path)):
                    self.add(path, self.code_rule(path, code, {**top, **table}), rules, override=True)
                elif what == "rule" and (said := self.checked(_RuleTable, {**top, **table}, path)):
                    self.add(path, self.rule(path, said), rules, override=said.override)
        if self.problems:
            raise config_error(self.problems, self.text, self.name)

    def tables(self, what: str, found: Any) -> list[dict[str, Any]]:
        """The tables of this name."""
        if isinstance(found, list) and all(isinstance(table, dict) for table in found):
            return found
        self.wrong((what,), f"{what} must be tables: write [[{what}]]")
        return []

    def wrong(self, path: Path, message: str) -> None:
        self.problems.append(Problem(path, message))

    def checked(self, kind: type[_T], table: Mapping[str, Any], path: Path) -> _T | None:
        """The table as this struct; None when it is wrong, which is noted."""
        said = {key: value for key, value in table.items() if key not in self.meaning}
        try:
            return msgspec.convert(said, kind)
        except msgspec.ValidationError as error:
            self.problems += why_refused(kind, said, error, path)
            return None

    def add(self, path: Path, rule: Rule | None, rules: dict[str, Rule], *, override: bool) -> None:
        other = rules.get(rule.id) if rule and not override else None
        if other is not None:
            where = f"{other.file}:{other.at_line}"
            self.wrong((*path, "id"), f'rule "{other.id}" is already defined in {where}; set override = true')
        elif rule is not None:
            rules[rule.id] = rule

    def rule(self, path: Path, said: _RuleTable) -> Rule | None:
        before = len(self.problems)
        if not re.fullmatch(r"[a-z0-9_]+(\.[a-z0-9_]+)*(\.\*)?", said.id):
            self.wrong((*path, "id"), f'id "{said.id}" must be words of a-z, 0-9 and _ joined by dots')
        patterns = (said.pattern, *said.patterns) if said.pattern else said.patterns
        if not patterns and not said.synthetic:
            self.wrong((*path, "id"), f'rule "{said.id}" has no pattern')
        for key, group in (("pattern", patterns), ("unless", said.unless)):
            for pattern in group:
                self.check_pattern(said.id, (*path, key), pattern)
        if len(self.problems) > before:
            return None
        cores = (said.core, *said.cores) if said.core else said.cores
        fields = {name: getattr(said, name) for name in Written.__struct_fields__}
        fields |= {"patterns": patterns, "cores": cores or self.derived_cores(said.id, (*path, "pattern"), patterns)}
        return Rule(**fields, file=self.name, at_line=self.places.line(path))

    def check_pattern(self, rule_id: str, path: Path, pattern: str) -> None:
        try:
            compiled = re.compile(pattern, re.ASCII)
        except re.error as error:
            self.wrong(path, f'rule "{rule_id}": not a regular expression: {error}')
            return
        if why := catastrophe(pattern):
            self.wrong(path, f'rule "{rule_id}": pattern refused, it can take catastrophic time: {why}')
        for group in compiled.groupindex:
            if group not in CAPTURES:
                self.wrong(path, f'rule "{rule_id}": unknown capture "{group}"{did_you_mean(group, CAPTURES)}')

    def derived_cores(self, rule_id: str, path: Path, patterns: tuple[str, ...]) -> tuple[str, ...]:
        cores = []
        for pattern in patterns:
            try:
                cores.append(core(pattern))
            except NoCoreError as error:
                self.wrong(path, f'rule "{rule_id}": cannot be scanned at speed: {error}; give one as core = ...')
        return tuple(cores)

    def code_rule(self, path: Path, code: _CodeTable, table: Mapping[str, Any]) -> Rule:
        said = {key: value for key, value in table.items() if key not in {*self.meaning, "code", "name"}}
        said |= {
            "id": f"nvidia.{path[0]}.{code.code}",
            "title": f"{_LABELS[str(path[0])]} {code.code}: {code.title or code.name}",
            "where": [StreamKind.KERNEL],
            "synthetic": True,
        }
        return msgspec.convert({**said, "file": self.name, "at_line": self.places.line(path)}, Rule)
