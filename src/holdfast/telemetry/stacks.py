"""Text of stack dumps to stacks: what `faulthandler` writes, and what `py-spy dump` prints.

Called by the launcher, which groups equal stacks to name the odd rank out, and by `holdfast explain`. Pure.
Lines of neither format are passed over, because dumps are cut short by dying processes and new versions of
Python and py-spy add lines. An empty list means that no thread was found.
"""

import json
import re
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Frame:
    """One Python call. `line` is 0 where the dump does not know it."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """One thread's calls, innermost first.

    Attributes:
        thread_id: the pthread handle (faulthandler, hexadecimal there) or the kernel's thread number (py-spy).
        current: faulthandler: the thread that took the signal; py-spy: the one that holds the interpreter lock.
        frames: innermost first; empty for a thread without Python calls.
        name: the thread's name where the dump gives it.
    """

    thread_id: int
    current: bool
    frames: tuple[Frame, ...]
    name: str | None = None


# "Thread 0x00007f0c (most recent call first):", since Python 3.14 with "[name]" after the number.
_FAULT_THREAD = re.compile(
    r"^(?P<current>Current thread|Thread) 0x(?P<id>[0-9a-fA-F]+)(?: \[(?P<name>.*)\])? \(most recent call first\):"
)
_FAULT_FRAME = re.compile(r'^ +File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$')


def parse_faulthandler(text: str) -> list[ThreadStack]:
    """Read `faulthandler` dumps; several dumps one after the other give their threads one after the other."""
    stacks: list[ThreadStack] = []
    frames: list[Frame] = []
    is_in_thread = False
    for line in text.splitlines():
        head = _FAULT_THREAD.match(line)
        if head:
            _close(stacks, frames)
            is_in_thread = True
            stacks.append(ThreadStack(int(head["id"], 16), head["current"] == "Current thread", (), head["name"]))
            continue
        call = _FAULT_FRAME.match(line)
        if call and is_in_thread:
            number = call["line"]
            frames.append(Frame(call["file"], int(number) if number.isdigit() else 0, call["function"]))
        elif line.startswith("Current thread's C stack"):
            _close(stacks, frames)
            is_in_thread = False
    _close(stacks, frames)
    return stacks


def _close(stacks: list[ThreadStack], frames: list[Frame]) -> None:
    if stacks and frames:
        stacks[-1] = replace(stacks[-1], frames=tuple(frames))
    frames.clear()


# "Thread 1234 (active+gil): "MainThread"", and "Thread 0x7F... (idle)" where py-spy knows no kernel thread.
_SPY_THREAD = re.compile(r'^Thread (?P<id>0x[0-9a-fA-F]+|\d+) \((?P<state>[^)]*)\)(?:: "(?P<name>.*)")?$')
_SPY_PROCESS = re.compile(r"Process \d+: ")
_HEAD = 4096
_SPY_FRAME = re.compile(r"^ {4}(?P<function>.+) \((?P<file>.+?)(?::(?P<line>\d+))?\)$")


def parse_pyspy(text: str) -> list[ThreadStack]:
    """Read `py-spy dump`, with or without `--json`. Only the JSON form has whole file names."""
    if text.lstrip().startswith(("[", "{")):
        try:
            return _pyspy_json(json.loads(text))
        except (ValueError, TypeError, KeyError, AttributeError):
            return []
    stacks: list[ThreadStack] = []
    frames: list[Frame] = []
    for line in text.splitlines():
        head = _SPY_THREAD.match(line)
        if head:
            _close(stacks, frames)
            state = head["state"].split("+")
            number = int(head["id"], 0)
            stacks.append(ThreadStack(number, "gil" in state, (), head["name"]))
            continue
        call = _SPY_FRAME.match(line)
        if call and stacks:
            frames.append(Frame(call["file"], int(call["line"] or 0), call["function"]))
    _close(stacks, frames)
    return stacks


def parse_dump(text: str) -> list[ThreadStack]:
    """Read a text that begins as a dump of one process's stacks; empty when it is something else."""
    begin = text[:_HEAD].lstrip()
    if _SPY_PROCESS.match(begin) and any(_SPY_THREAD.match(line) for line in begin.splitlines()):
        return parse_pyspy(text)
    return parse_faulthandler(text) if _FAULT_THREAD.match(begin) else []


def _pyspy_json(value: Any) -> list[ThreadStack]:
    threads = value if isinstance(value, list) else [value]
    return [
        ThreadStack(
            thread_id=int(thread.get("os_thread_id") or thread["thread_id"]),
            current=bool(thread.get("owns_gil")),
            frames=tuple(
                Frame(str(call["filename"]), int(call.get("line") or 0), str(call["name"]))
                for call in thread.get("frames", [])
            ),
            name=thread.get("thread_name"),
        )
        for thread in threads
    ]
