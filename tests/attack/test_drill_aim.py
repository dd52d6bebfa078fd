"""A drill that is aimed at somebody else's process: a number that was given anew, another node's, another job's.

What sends the signal runs with the daemon's or the job's rights, so that the process is held by a descriptor and looked
at before it is hit.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from tests.launch.conftest import wait_for

from attack_fixture import Attempt
from holdfast.adapters.local import breakers
from holdfast.errors import RefusedError
from holdfast.launch.process import spawn
from holdfast.launch.ranks import RankSet

SLEEP = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """Somebody else's process."""
    process = subprocess.Popen(SLEEP, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def state_of(pid: int) -> str:
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0].decode()


def is_stopped(process: subprocess.Popen[bytes], *, sure: bool) -> bool:
    """Was it hit? A signal that was sent needs a moment; `sure`: wait for it."""
    if sure:
        wait_for("the signal", lambda: state_of(process.pid) == "T")
    return state_of(process.pid) == "T"


def blind(pids, sig: int, *, of) -> list[int]:
    """A breaker that trusts the numbers that it was given."""
    del of
    for pid in pids:
        os.kill(pid, sig)
    return list(pids)


def node_of(*, task: int = 0, node: tuple[int, ...] = ()) -> SimpleNamespace:
    """A node whose tables say this."""
    return SimpleNamespace(name="n1", pids_of=lambda target: list(node) if target == "node" else [task])


@pytest.mark.attempt(actor="A drill", asset="somebody's process", removed="adapters.local.breakers.strike")
@pytest.mark.parametrize("how", ["a task's number given anew", "a process of another node"])
def test_a_drill_hits_no_process_outside_its_node(
    attempt: Attempt, stranger: subprocess.Popen[bytes], how: str
) -> None:
    """Have a drill's signal sent to a process that does not run on the node that is open to drills."""
    attempt.without(breakers, "strike", blind)
    named = how == "a process of another node"
    try:
        breakers._signal(
            node_of(task=stranger.pid), signal.SIGSTOP, stranger.pid if named else 0, "" if named else "task"
        )
    except RefusedError:
        assert named
    attempt.judge(succeeded=is_stopped(stranger, sure=attempt.is_open))


def test_a_process_that_has_ended_is_not_hit(stranger: subprocess.Popen[bytes]) -> None:
    """Its number may be another's at once: who has ended is passed over, who runs on the node is hit."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, gone.pid, os.WEXITED | os.WNOWAIT)
    both = [gone.pid, stranger.pid]
    assert breakers.strike([*both, 2**22 - 1], signal.SIGSTOP, of=lambda: [*both, os.getpid()]) == [stranger.pid]
    assert is_stopped(stranger, sure=True)
    gone.wait()
    assert breakers.strike([os.getpid()], signal.SIGKILL, of=lambda: [os.getpid()]) == []


@pytest.mark.attempt(actor="A drill", asset="somebody's process", removed="launch.ranks.RankSet._is_below")
def test_a_rank_below_a_command_is_held_before_it_is_believed(
    attempt: Attempt, stranger: subprocess.Popen[bytes]
) -> None:
    """Have a drill hit a stranger whose process has got the number of a rank below torchrun since it was found."""
    attempt.without(RankSet, "_is_below", lambda _self, _foreign: True)

    async def work() -> None:
        ranks = RankSet.__new__(RankSet)
        command = spawn(SLEEP, env=dict(os.environ))
        ranks.children, ranks.found, ranks._ended_foreign = {None: command}, {}, set()
        try:
            ranks._watch(0, stranger.pid, lambda: 0.0)
            assert ranks.send(0, signal.SIGSTOP) is attempt.is_open
        finally:
            ranks.close()
            command.send(signal.SIGKILL)
            await command.exited.wait()

    asyncio.run(work())
    attempt.judge(succeeded=is_stopped(stranger, sure=attempt.is_open))
