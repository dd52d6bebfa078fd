"""One line of a log, taken apart: ANSI codes, rank prefixes, host, timestamps.

Called by the matcher on lines that are worth it (never on all of them). The time on a line is read as UTC, since a
log does not say its zone; attribution compares such times only within one machine or with offsets.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterator
from datetime import UTC, datetime

from msgspec import Struct
from msgspec.structs import replace

ANSI = re.compile(rb"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b\n]{0,256}(?:\x07|\x1b\\)|[@-Z\\^_])")
"""Colour, cursor and title sequences (ECMA-48 CSI and OSC)."""

PLACE_MAX = 10_000_000
"""Greatest rank or GPU that is believed; anyone may write any digits into a log."""
PLACE_DIGITS_MAX = 32

_PREFIX = re.compile(
    r"""\s*(?:
      \[(?:rank|Rank|RANK)\s?:?\s?(?P<rank>\d{1,6})\]:?\s?
    | \[(?P<group>default|trainer|worker|node)_?(?P<local>\d{1,6})(?:\|\d{1,6})?\]:?\s?
    | (?P<task>\d{1,6}):\s(?!\d\d:)
    | \[\d+,(?:mpirank:)?(?P<mpi>\d{1,6})(?:,[\w.-]{1,60})?\]<std(?:out|err)>:\s?
    | \((?P<actor>[A-Za-z_][\w.]*)(?:,\s|\s)?(?:pid=\d+)(?:,\s?ip=(?P<ip>[\d.]+))?\)\s
    | \[pod/(?P<pod>[^\]/]+)/[^\]]+\]\s
    | \[(?P<bare>\d{1,7})\]\s(?=\[)
    | \[(?:titan|NeMo\s[IWED])\]\s
    | \d{1,8}\.\d{1,3}s\t\d{1,8}\t
    | (?:[a-z][\w.-]{0,60}/\d{1,6}\s)(?=\[(?:default|rank|trainer|worker))
    | [0-9a-f]{8}\s\|\|\s
    | <\d{1,3}>(?=[A-Z][a-z]{2}\s|\d{4}-\d\d-\d\dT)
    | std(?:err|out)(?::\s|\s[FP]\s)
    | \|\s(?=\d{4}-\d\d-\d\d|\[rank\d)
    | (?P<service>[a-z][a-z0-9_.-]{0,60}\d)\s{1,4}\|\s(?=\S|\s{2})
    )""",
    re.VERBOSE,
)
_PDSH = re.compile(r"(?P<host>[a-z][a-z0-9-]*\d[a-z0-9.-]*):\s(?=\s{0,8}\S)")
_PDSH_BEFORE = re.compile(
    r"""(?P<host>[a-z][a-z0-9-]*\d[a-z0-9.-]*):\s(?=
      \[(?:rank|Rank|RANK)\s?:?\s?\d | \s{1,8}File\ " | \s{3,} | Traceback\ \(most
      | [A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)\b )""",
    re.VERBOSE,
)
"""The `host: ` of pdsh or clush before what surely is a rank's line or a part of a traceback."""
_LOGGER_BEFORE = re.compile(
    r"""(?:
      (?:[A-Za-z_][\w./-]{0,60}\[\d{1,8}\]:\s)
    | (?:-\s)?(?:[A-Za-z_][\w.]{0,60}\s-\s)?
      (?:DEBUG|INFO|WARNING|ERROR|CRITICAL|FATAL)(?:\s-\s[A-Za-z_][\w.]{0,60})?(?:\s-|:)\s
    | \d{1,10}\s[\w./-]{1,80}:\d{1,6}\]\s
    )(?=
      \[(?:rank|Rank|RANK)\s?:?\s?\d | \s{1,8}File\ " | \s{3,} | Traceback\ \(most
      | [A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)\b )""",
    re.VERBOSE,
)
"""What syslog, Python's logging and glog put between the time and a part of a traceback."""
_OPENER = "Traceback (most recent call last):"
_PART = (
    r"(?=\s{1,8}File \"|\s{3,}|During handling of|The above exception"
    r"|[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)\b)"
)
_LEARNED_MAX = 120
_SHAPES_MAX = 8
_LABEL = re.compile(r"(?:[\[(<]?[\w./@-]{1,80}(?:\[\d{1,8}\])?[\])>]?:?\s?[|>]?\s{1,8}){1,4}")
"""What collectors put before each line: names of hosts, pods and containers, in brackets or before a colon or a bar."""
_MILD_LABEL = re.compile(r"\b(?:DEBUG|INFO|TRACE|debug|info|trace)\b(?! ?std(?:out|err)\b)")
"""A logger's own word that the line is no error: what follows it is not read alone."""
_FIRST_LINES = 32
_FIRST_LINES_MIN = 6
_FIRST_BYTES = 200
_COMMON_SHARE = 0.9
"""So many of the first lines must begin alike: some are written past the collector."""
_TAG = re.compile(r"[A-Za-z_][\w./-]{0,60}\[\d{1,8}\]:\s")
"""Syslog's name of the program."""
_NOT_HOSTS = re.compile(
    r"(?:nvidia-|nvme|mlx|eth|ib\d|en[ops]\d|sd[a-z]|dm-|md\d|loop\d|xfs|ext4|bond|cpu\d|nfs"
    r"|ata\d|e1000|i40e|i8042|i915|i2c|hfi1|bnx2|tg3|r8\d\d\d|x86|br\d|veth|cali|docker\d|wlan|tsc|hpet\d|sr\d|fd\d|mpt\d)"
)
"""What the kernel's own messages begin with: devices and drivers."""
_MONTHS = {
    m: i + 1 for i, m in enumerate(("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"))
}
_STAMP = re.compile(
    r"""\s*[\[(]?(?:
      (?P<iy>\d{4})[-/](?P<im>\d\d)[-/](?P<id>\d\d)[T\s](?P<ih>\d\d):(?P<ii>\d\d):(?P<is>\d\d)(?P<if>[.,]\d{1,9})?
      (?P<iz>Z|[+-]\d\d:?\d\d)?
    | (?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)\s+)?(?P<bm>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\s+(?P<bd>\d{1,2})
      \s+(?P<bh>\d\d):(?P<bi>\d\d):(?P<bs>\d\d)(?P<bf>\.\d{1,9})?(?:\s(?P<by>\d{4}))?
    | (?:[0-9a-f]{1,4}\s\|\s)?(?P<um>\d\d)/(?P<ud>\d\d)/(?P<uy>\d{4})\s(?:\|\s)?
      (?P<uh>\d\d):(?P<ui>\d\d):(?P<us>\d\d)(?P<uf>[.,]\d{1,9})?
    | [IWEF](?P<gm>\d{1,2})(?P<gd>\d\d)\s(?P<gh>\d\d):(?P<gi>\d\d):(?P<gs>\d\d)(?P<gf>\.\d{1,9})?
    )[\])]?(?:\s?[:|-])?\s?""",
    re.VERBOSE,
)
_STAMP_FORMS = {
    form: (f"{year}y", *(form + part for part in "mdhisf")) for form, year in zip("ibug", "ibub", strict=True)
}
"""First letter of the groups of a form -> its groups, from the year to the fraction; glog's has no year."""
_SYSLOG_HOST = re.compile(r"(?P<host>[A-Za-z0-9][A-Za-z0-9._-]*)\s(?=(?:kernel|[A-Za-z_][\w./-]*(?:\[\d+\])?):)")
_JOURNAL_HOST = re.compile(r"(?P<host>[A-Za-z0-9][A-Za-z0-9._-]*)\s(?=(?:kernel|[A-Za-z_][\w.@-]*\[\d+\]):\s)")
"""After a stamp with its zone, any word may stand: what follows must surely be syslog's (rsyslog, journalctl)."""
_UPTIME = re.compile(r"\s*(?:<\d+>)?(?:kernel:\s*)?\[\s*\d+\.\d{3,6}\]\s?")


class Line(Struct, frozen=True, omit_defaults=True):
    """A line without what was put before it."""

    body: str
    rank: int | None = None
    node: str = ""
    at: float | None = None
    year: int | None = None
    """The year on the line's stamp, when it carries one."""
    key: str = ""
    """Which of the interleaved writers this line comes from."""
    rest: str = ""
    """The body without what all of its stream's lines begin with, when there is such a label."""


class LearnedPrefixes:
    """What a writer that nobody here knows puts before its lines, learned where a traceback begins.

    The lines below `PREFIX Traceback (most recent call last):` begin alike, but for digits. Only parts of a traceback
    are read without it: elsewhere such a prefix may be what a rule goes by. A label that the first lines have in common
    is left out where a rule does not fit the line with it.
    """

    def __init__(self) -> None:
        self._shapes: list[re.Pattern[str]] = []
        self._first: list[str] = []
        self._label: re.Pattern[str] | None = None

    def show(self, block: bytes, start: int, stop: int) -> None:
        """The next bytes of the stream: its first lines are learned from, the others are not looked at."""
        if len(self._first) >= _FIRST_LINES:
            return
        for raw in block[start : min(stop, start + _FIRST_LINES * 1024)].split(b"\n"):
            if raw.strip() and len(self._first) < _FIRST_LINES:
                self._first.append(raw[:_FIRST_BYTES].decode("utf-8", "replace"))
        if len(self._first) >= _FIRST_LINES_MIN:
            indents = sorted(len(line) - len(line.lstrip(" ")) for line in self._first)
            indent = indents[int((1 - _COMMON_SHARE) * len(indents))]
            bodies = [take_apart(line).body for line in self._first]
            self._label = re.compile(" " * indent) if indent else _common_label(bodies)

    def told(self, line: Line, year: int) -> Line:
        """The line with what is known of its stream's prefixes."""
        body = self.off(line.body)
        found = self._label.match(body) if self._label else None
        if found is None or _MILD_LABEL.search(found[0]):
            return line if body == line.body else replace(line, body=body)
        behind = take_apart(body[found.end() :], year)
        rank, key = line.rank, line.key
        if rank is None and behind.rank is not None:
            rank, key = behind.rank, f"{behind.rank}/{line.node}"
        at = line.at if line.at is not None else behind.at
        return replace(line, body=body, rank=rank, at=at, year=line.year or behind.year, key=key, rest=behind.body)

    def off(self, body: str) -> str:
        """The body without a prefix that was learned, or is learned now."""
        place = body.find(_OPENER)
        if 0 < place <= _LEARNED_MAX and body.endswith(_OPENER):
            before = body[:place]
            if len(self._shapes) < _SHAPES_MAX:
                shape = re.compile(re.sub(r"\d+", r"\\d+", re.escape(before)) + _PART)
                if shape.pattern not in {known.pattern for known in self._shapes}:
                    self._shapes.append(shape)
            return body[place:]
        for shape in self._shapes:
            if found := shape.match(body):
                return body[found.end() :]
        return body


def _common_label(lines: list[str]) -> re.Pattern[str] | None:
    """The label that most of these lines begin with, whatever its digits and the logger's word of severity."""
    shapes = sorted(re.sub(r"\d+", "0", line) for line in lines)
    most = max(_FIRST_LINES_MIN, int(_COMMON_SHARE * len(shapes)))
    common = max((_alike(shapes[i], shapes[i + most - 1]) for i in range(len(shapes) - most + 1)), key=len)
    found = _LABEL.match(common)
    if found is None:
        return None
    shape = re.escape(found[0]).replace("0", r"\d+")
    return re.compile(re.sub(r"\bINFO\b", "(?:INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)", shape))


def _alike(one: str, other: str) -> str:
    """What two texts begin with."""
    end = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return one[:end]


def take_apart(text: str, year: int = 1970, learned: LearnedPrefixes | None = None) -> Line:
    """Split off prefixes in any order and depth (srun's label, then torchrun's, then a time...).

    Args:
        text: one decoded line without its end and without ANSI codes.
        year: for stamps that carry none (syslog, glog).
        learned: prefixes that this stream has shown so far.
    """
    body = text
    rank: int | None = None
    local: int | None = None
    task: int | None = None
    node = ""
    at: float | None = None
    dated: int | None = None
    for _ in range(8):
        if found := _PREFIX.match(body):
            groups = found.groupdict()
            if groups["rank"] is not None:
                rank = int(groups["rank"])
            elif groups["local"] is not None:
                local = int(groups["local"])
            elif groups["task"] is not None or groups["mpi"] is not None:
                task = int(groups["task"] or groups["mpi"])
            node = groups["pod"] or groups["ip"] or groups["service"] or node
        elif at is None and (found := _STAMP.match(body)):
            at = _stamp(found, year)
            dated = int(found["iy"] or found["by"] or found["uy"] or 0) or None
            syslog = _SYSLOG_HOST if found["bm"] else _JOURNAL_HOST if found["iz"] else None
            in_brackets = found[0].lstrip()[0] in "[("  # dmesg's, which names no host
            if syslog is not None and not in_brackets and (host := syslog.match(body, found.end())):
                node = host["host"]
                body = body[host.end() :]
                continue
        elif (found := _PDSH_BEFORE.match(body)) and not _NOT_HOSTS.match(body):
            node = found["host"]
        elif at is not None and (found := _LOGGER_BEFORE.match(body)):
            pass
        elif not (found := _UPTIME.match(body)):
            break
        body = body[found.end() :]
    if rank is None:
        rank = task if task is not None else local
    head = text[: len(text) - len(body)]
    key = "" if rank is None and not node else re.sub(r"[^\[\]A-Za-z0-9_/-]|\d+:\d+\S*|\d{4}-\S*", "", head)
    line = Line(body, rank, node, at, dated, key if rank is None else f"{rank}/{node}")
    return line if learned is None else learned.told(line, year)


def place_number(text: str) -> int | None:
    """The rank or GPU that a log names in digits; None for what is no number, or none that a job could have."""
    number = int(text) if len(text) <= PLACE_DIGITS_MAX and text.isdecimal() else None
    return number if number is not None and number <= PLACE_MAX else None


def readings(line: Line) -> Iterator[tuple[str, str]]:
    """What a rule may fit, and its host: the body as it is, without the `host: ` of pdsh or clush, without a label."""
    yield line.body, ""
    found = _PDSH.match(line.body)
    if found is not None and not _NOT_HOSTS.match(line.body):
        rest = line.body[found.end() :]
        yield rest, found["host"]
        if (behind := take_apart(rest).body) != rest:
            yield behind, found["host"]
    if tag := _TAG.match(line.body):
        yield line.body[tag.end() :], ""
    if line.rest:
        yield line.rest, ""


def _stamp(found: re.Match[str], year: int) -> float | None:
    own, month, *rest, fraction = found.group(*_STAMP_FORMS[str(found.lastgroup)[0]])
    number, day, *time = _MONTHS.get(month) or int(month), *map(int, rest)
    if not (1 <= number <= 12 and 1 <= day <= 31):
        return None
    at = float(calendar.timegm((int(own or year), number, day, *time, 0, 0, 0)))
    if (zone := found["iz"]) and zone != "Z":
        sign = -1 if zone[0] == "+" else 1
        at += sign * (int(zone[1:3]) * 3600 + int(zone[-2:]) * 60)
    return at + (float("0." + fraction[1:]) if fraction else 0.0)


_LOGGED = re.compile(
    r"\b(?:DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)\b|\d\d:\d\d:\d\d"
    r"|\"level\": ?\"\w{3,9}\"|\blevel=\w{3,9}\b"
)
"""A logger's word for how grave a line is, or a time of day."""
_LOOKED_AT = 200


def looks_like_a_log(block: bytes) -> bool:
    """Whether any of the first lines carries a time, a rank or a logger's level, as only a log's do."""
    for raw in block.split(b"\n", _LOOKED_AT)[:_LOOKED_AT]:
        text = raw[:_FIRST_BYTES].decode("utf-8", "replace")
        line = take_apart(text)
        if line.at is not None or line.rank is not None or _UPTIME.match(text) or _LOGGED.search(text):
            return True
    return False


_CONTROL = bytes([*range(1, 8), *range(14, 27), *range(28, 32), 127])
"""Bytes that no text holds; a tab, a return, a backspace and the escape of a colour are not among them."""
_MACHINE_CODE = 0.05
_HEAD = 4096


def is_binary(block: bytes) -> bool:
    """Whether the first bytes are a program's, an image's or a pack's; a rotated log's zero bytes alone are not."""
    head = block[:_HEAD]
    rest = head.replace(b"\0", b"")
    return len(rest) < len(head) and len(rest) - len(rest.translate(None, _CONTROL)) > _MACHINE_CODE * len(rest)


def year_of(at: float) -> int:
    """The UTC year of a Unix time."""
    return datetime.fromtimestamp(at, UTC).year
