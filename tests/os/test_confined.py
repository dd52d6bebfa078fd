"""What is left to a process that gave up its rights, as the kernel tells it."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from holdfast.os.confined import confine

STRANGER = 54321


def told_by(child: Callable[[], str]) -> str:
    """What a forked process says, before it is gone."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, child().encode())
        except BaseException as error:
            os.write(writing, repr(error).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as said:
        text = said.read()
    os.waitpid(pid, 0)
    return text


@pytest.mark.parametrize("is_root", [True, False])
def test_nothing_is_left_but_to_compute(is_root: bool) -> None:
    """Root becomes a user without rights; whoever is not root keeps the name, and loses the rest as well."""
    if os.geteuid() != 0:
        pytest.skip("only root becomes both")

    def child() -> str:
        status = os.open("/proc/self/status", os.O_RDONLY)
        if not is_root:
            os.setgroups([])
            os.setgid(STRANGER)
            os.setuid(STRANGER)
        held = confine("nobody", 64 << 20)
        try:
            os.open("/etc/passwd", os.O_RDONLY)
        except PermissionError:
            return f"{held.uid} {held.has_rights} {held.no_new_privileges} {held.system_calls}\n" + os.read(
                status, 8192
            ).decode(errors="replace")
        return "a file could be opened"

    first, _, status = told_by(child).partition("\n")
    uid = 65534 if is_root else STRANGER
    assert first == f"{uid} False True True"
    told = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert told["Uid"].split() == [str(uid)] * 4
    assert [told[name] for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")] == ["0" * 16] * 4
    assert (told["NoNewPrivs"], told["Seccomp"]) == ("1", "2")


def test_memory_is_bounded() -> None:
    """What asks for too much of it fails, and only that process."""

    def child() -> str:
        confine("nobody", 16 << 20)
        try:
            return str(len(bytes(256 << 20)))
        except MemoryError:
            return "no memory"

    assert told_by(child) == "no memory"


def test_a_user_may_be_a_number_that_nobody_has() -> None:
    """`parser_user = "54321"`: such a user has no files either."""
    if os.geteuid() != 0:
        pytest.skip("only root becomes another")
    assert told_by(lambda: str(confine(str(STRANGER), 64 << 20).uid)) == str(STRANGER)
    assert "KeyError" in told_by(lambda: str(confine("no-such-user", 64 << 20).uid))
