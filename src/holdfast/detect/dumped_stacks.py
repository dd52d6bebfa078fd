"""Stacks taken by hand, as text: `py-spy dump` and faulthandler. Called by `holdfast explain`. Pure."""

from __future__ import annotations

import re

from msgspec import Struct

from holdfast.detect.stack_groups import training_stack

_PYSPY = re.compile(r"^Process \d+: ", re.MULTILINE)
_PYSPY_THREAD = re.compile(r'^Thread (?:0x[0-9A-Fa-f]+|\d+) \((?P<state>[^)]*)\)(?:: "(?P<name>[^"]*)")?')
_PYSPY_FRAME = re.compile(r"^ {4}(?P<function>\S.*?) \((?P<file>[^()]+):(?P<line>\d+)\)$")
_FAULT_THREAD = re.compile(r"^(?P<current>Current thread|Thread) 0x[0-9a-f]+ .*\(most recent call first\):")
_FAULT_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.+)$')
HEAD = 4096


class StackFrame(Struct, frozen=True):
    """One call."""

    file: str
    line: int
    function: str


class DumpedThread(Struct):
    """One thread of a dump, innermost call first."""

    current: bool
    name: str | None
    frames: list[StackFrame]


def is_dump(head: str) -> bool:
    """Whether a text that begins like this is a dump of one process's stacks."""
    begin = head.lstrip()
    if _PYSPY.match(begin):
        return any(_PYSPY_THREAD.match(line) for line in begin.splitlines())
    return bool(_FAULT_THREAD.match(begin))


def dumped_stack(text: str) -> tuple[StackFrame, ...]:
    """The calls of the thread that trains, innermost first; empty when there are none."""
    threads: list[DumpedThread] = []
    for line in text.splitlines():
        if found := _PYSPY_THREAD.match(line):
            threads.append(DumpedThread("active" in found["state"], found["name"], []))
        elif found := _FAULT_THREAD.match(line):
            threads.append(DumpedThread(found["current"].startswith("Current"), None, []))
        elif threads and (found := _PYSPY_FRAME.match(line) or _FAULT_FRAME.match(line)):
            threads[-1].frames.append(StackFrame(found["file"], int(found["line"]), found["function"]))
    return tuple(StackFrame(frame.file, frame.line, frame.function) for frame in training_stack(threads))
