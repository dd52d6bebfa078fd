"""Messages that span lines, put together per writer: Python tracebacks, torchrun's failure table, NVRM's three lines.

The matcher opens a record when a rule with `record = ...` matches, then hands over the lines that follow, until the
record says that it is complete. Writers interleave, so lines are told apart by their prefix (`Line.key`).
"""

from __future__ import annotations

import re

from msgspec import Struct

from holdfast.detect.catalogue import UNNAMED, Catalogue, Rule
from holdfast.detect.lines import Line
from holdfast.model.evidence import Role

_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?')
_EXCEPTION = re.compile(r"^(?P<type>[A-Za-z_][\w]*(?:\.[A-Za-z_]\w*)*)(?::\s?(?P<message>.*))?$")
_EXCEPTION_ENDS = ("error", "exception", "exit", "interrupt", "iteration", "timeout", "failure", "fault", "warning")
_LIBRARY = re.compile(r"site-packages|dist-packages|/lib/python3|<frozen |<string>|^/opt/conda/lib|importlib|runpy\.py")
_ELASTIC_FIELD = re.compile(r"^\s+(?P<name>time|host|rank|exitcode|error_file|traceback|msg)\s*:\s?(?P<value>.*)$")
_SKIPPED_MAX = 40
_FRAMES_MAX = 400


class Frame(Struct, frozen=True):
    """One frame of a Python traceback."""

    file: str
    line: str
    function: str

    @property
    def of_library(self) -> bool:
        """Whether the frame lies in an installed library rather than in the user's own code."""
        return bool(_LIBRARY.search(self.file))


class Record:
    """A message under assembly.

    Attributes:
        captures: what is known so far.
        complete: no further line belongs to it.
    """

    def __init__(self) -> None:
        self.captures: dict[str, str] = {}
        self.complete = False
        self.skipped = 0

    def offer(self, line: Line) -> bool:
        """Take the next line of this writer; True when the line ends the record with its telling part."""
        raise NotImplementedError

    def skip(self) -> None:
        """A line that does not belong here; after too many the record is dropped."""
        self.skipped += 1
        if self.skipped > _SKIPPED_MAX:
            self.complete = True


class Traceback(Record):
    """From `Traceback (most recent call last):` to the exception's line."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[Frame] = []

    def offer(self, line: Line) -> bool:
        """Frames are kept, the exception's line ends it."""
        body = line.body
        if found := _FRAME.match(body):
            if len(self.frames) < _FRAMES_MAX:
                self.frames.append(Frame(found["file"], found["line"], found["function"] or ""))
            return False
        if not body.strip() or body[0] in " \t|+":
            return False
        found = _EXCEPTION.match(body)
        if found is None or not _is_exception(found["type"], found["message"]):
            self.skip()
            return False
        self.complete = True
        self.captures = {"type": found["type"], "message": (found["message"] or "").strip()[:300]}
        frame = self.innermost()
        if frame is not None:
            self.captures |= {"file": frame.file, "line": frame.line, "function": frame.function}
        return True

    def innermost(self) -> Frame | None:
        """The innermost frame of the user's own code, else the innermost of all."""
        for frame in reversed(self.frames):
            if not frame.of_library:
                return frame
        return self.frames[-1] if self.frames else None


def _is_exception(name: str, message: str | None) -> bool:
    """Whether a line's first word is an exception's name: an interleaved line of prose must not end a traceback."""
    last = name.rpartition(".")[2]
    if last.lower().endswith(_EXCEPTION_ENDS):
        return True
    return message is not None and last[0].isupper() and last != last.upper()


class ElasticFailure(Record):
    """torchrun's table of the first failure: host, rank, exit code, in indented `name : value` lines."""

    def offer(self, line: Line) -> bool:
        """Fields are kept; `traceback`, which stands last, ends it."""
        if found := _ELASTIC_FIELD.match(line.body):
            self._field(found["name"], found["value"].strip())
            if found["name"] == "traceback":
                self.complete = True
                self.captures["table"] = "torchrun"
            return self.complete
        if not line.body.startswith("["):
            self.skip()
        return False

    def _field(self, name: str, value: str) -> None:
        if name == "host":
            self.captures["node"] = value
        elif name == "rank" and (found := re.match(r"(\d+) \(local_rank: (\d+)\)", value)):
            self.captures |= {"rank": found[1], "local_rank": found[2]}
        elif name == "exitcode" and (found := re.match(r"(-?\d+)(?: \(pid: (\d+)\))?", value)):
            self.captures["code"] = found[1]
            if found[2]:
                self.captures["pid"] = found[2]
        elif name in {"traceback", "msg"}:
            self.captures["message"] = value[:300]


class NvrmGone(Record):
    """`NVRM: The NVIDIA GPU ...`, `NVRM: (PCI ID: ...) installed in this system has`, `NVRM: fallen off the bus`."""

    def offer(self, line: Line) -> bool:
        """The third line ends it."""
        if "fallen off the bus" in line.body:
            self.complete = True
            return True
        if "NVRM:" not in line.body:
            self.skip()
        return False


RECORDS: dict[str, type[Record]] = {"traceback": Traceback, "elastic": ElasticFailure, "nvrm": NvrmGone}


def joined(
    judged: tuple[Rule, dict[str, str]] | None, record: Record, opener: Rule, catalogue: Catalogue
) -> tuple[Rule, dict[str, str]] | None:
    """The rule and captures of a record that its last line ended, given what that line is by itself."""
    if judged is not None and judged[0].kind == UNNAMED:
        judged = None
    if judged is not None and (judged[0].role is Role.ROOT or "table" not in record.captures):
        rule, captures = judged
        return rule, record.captures | captures
    if code := record.captures.get("code", ""):
        # torchrun calls this rank the first to fail: how it ended is the root until something explains it.
        ended = f"exit.signal.{code[1:]}" if code.startswith("-") else f"exit.code.{code}"
        return catalogue.get(ended), record.captures
    whole = catalogue.find(f"{opener.id}.whole")
    return (whole, record.captures) if whole is not None else None
