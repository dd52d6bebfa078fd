"""`os/processes.py`: a signal reaches the process that is meant, never one that has been given its number."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from holdfast.os import processes
from holdfast.os.processes import catches, strike


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that catches SIGUSR2 and nothing else."""
    code = "import signal; signal.signal(signal.SIGUSR2, lambda *_: None); print(1, flush=True); signal.sigwait([10])"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as one:
        assert one.stdout is not None
        one.stdout.readline()
        yield one
        one.kill()


def test_what_is_not_meant_any_more_is_spared(sleeper: subprocess.Popen[bytes]) -> None:
    """A number that was found, and belongs to somebody else by the time of the signal."""
    assert strike([sleeper.pid], signal.SIGKILL, of=list) == []
    assert strike([os.getpid()], signal.SIGKILL, of=lambda: [os.getpid()]) == []
    assert sleeper.poll() is None
    assert strike([sleeper.pid], signal.SIGKILL, of=lambda: [sleeper.pid]) == [sleeper.pid]
    assert sleeper.wait() == -signal.SIGKILL


def test_more_processes_than_descriptors_are_signalled(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node of 1,000 data loaders: only some are held at once, the look at them included."""
    monkeypatch.setattr(processes, "HELD_MAX", 2)
    mine = [os.getpid(), os.getppid(), sleeper.pid]
    looks: list[int] = []

    def meant() -> list[int]:
        looks.append(1)
        return [sleeper.pid]

    assert strike(mine, signal.SIGUSR2, of=meant) == [sleeper.pid]
    assert len(looks) == 2


def test_a_process_is_signalled_by_a_high_descriptor(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process with more than a thousand open files signals as well as any other."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    real = os.pidfd_open

    def high(pid: int) -> int:
        low = real(pid)
        try:
            return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 1024)
        finally:
            os.close(low)

    monkeypatch.setattr(os, "pidfd_open", high)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2048)), hard))
    try:
        assert strike([sleeper.pid], signal.SIGKILL, of=lambda: [sleeper.pid]) == [sleeper.pid]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_says_which_signals_it_catches(sleeper: subprocess.Popen[bytes]) -> None:
    """One that does not is ended by the signal, so it is asked first; one that is gone catches none."""
    assert catches(sleeper.pid, signal.SIGUSR2)
    assert not catches(sleeper.pid, signal.SIGUSR1)
    sleeper.kill()
    sleeper.wait()
    assert not catches(sleeper.pid, signal.SIGUSR2)
