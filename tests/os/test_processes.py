"""`os/processes.py`: a signal reaches the process that is meant, never one that has been given its number."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

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


def test_a_process_says_which_signals_it_catches(sleeper: subprocess.Popen[bytes]) -> None:
    """One that does not is ended by the signal, so it is asked first; one that is gone catches none."""
    assert catches(sleeper.pid, signal.SIGUSR2)
    assert not catches(sleeper.pid, signal.SIGUSR1)
    sleeper.kill()
    sleeper.wait()
    assert not catches(sleeper.pid, signal.SIGUSR2)
