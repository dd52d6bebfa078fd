"""Processes: seen when they end, and provably gone when they are ended."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.launch.conftest import alive, marked, wait_for

from holdfast.errors import PermanentOrderError
from holdfast.launch import process
from holdfast.launch.process import Exit

SLEEPER = "import time; time.sleep(60)"


_PR_SET_CHILD_SUBREAPER = 36


def run(work):
    """Run with this process as subreaper, as a launcher is, and only so long.

    To a launcher, children that it has not started are strangers, which end with its ranks; those of this test run, such
    as its PostgreSQL, are made known before.
    """
    mine = [pid for pid, parent in process.parents().items() if parent == os.getpid()]
    process._known.update(dict.fromkeys(mine))
    process.become_subreaper()
    try:
        return asyncio.run(work)
    finally:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        for pid in mine:
            process._known.pop(pid, None)


def test_children_of_the_test_run_outlive_its_tests():
    """It once cost the run its database, hundreds of tests later."""
    other = subprocess.Popen([sys.executable, "-c", SLEEPER])

    async def case() -> None:
        await process.end_trees([process.spawn([sys.executable, "-c", SLEEPER], env=os.environ)], grace_s=0.0)

    try:
        run(case())
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_an_end_is_seen_with_its_signal():
    """By pidfd: nothing looks again and again."""

    async def case() -> tuple[Exit | None, bool]:
        child = process.spawn([sys.executable, "-c", SLEEPER], env=os.environ)
        before = time.time()
        os.kill(child.pid, signal.SIGSEGV)
        await asyncio.wait_for(child.exited.wait(), 30)
        return child.exit, before <= child.ended_at <= time.time()

    assert run(case()) == (Exit(signal=11), True)


def test_a_program_that_does_not_exist_is_one_sentence():
    """Not a traceback of subprocess."""

    async def case() -> None:
        process.spawn(["/no/such/program"], env={})

    with pytest.raises(PermanentOrderError, match="cannot start /no/such/program"):
        run(case())


def test_ending_a_tree_takes_what_has_left_its_session(tmp_path: Path):
    """A child of a rank in a session of its own, whose parent has gone, and one that ignores SIGTERM."""
    sleeper, middle, rank = (tmp_path / name for name in ("sleeper.py", "middle.py", "rank.py"))
    sleeper.write_text(SLEEPER)
    spawn = f"import subprocess, sys\np = subprocess.Popen([sys.executable, {str(sleeper)!r}], stdout=-3, start_new_session=True)\n"
    middle.write_text(spawn + "print(p.pid, flush=True)\n")
    rank.write_text(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        + spawn
        + f"out = subprocess.run([sys.executable, {str(middle)!r}], stdout=subprocess.PIPE, text=True).stdout\n"
        f"open({str(tmp_path / 'pids')!r}, 'w').write(out.strip() + ' ' + str(p.pid))\n"
        "time.sleep(60)\n"
    )

    async def case() -> list[int]:
        child = process.spawn([sys.executable, str(rank)], env=os.environ)
        while not (tmp_path / "pids").exists() or len((tmp_path / "pids").read_text().split()) < 2:
            await asyncio.sleep(0.01)
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        assert all(alive(pid) for pid in pids)
        await process.end_trees([child], grace_s=0.1)
        return [child.pid, *pids]

    assert [pid for pid in run(case()) if alive(pid)] == []


def test_a_stopped_process_still_ends_within_its_grace():
    """SIGTERM alone would wait for ever in a stopped process."""

    async def case() -> Exit | None:
        child = process.spawn([sys.executable, "-c", SLEEPER], env=os.environ)
        os.kill(child.pid, signal.SIGSTOP)
        await process.end_trees([child], grace_s=5.0)
        return child.exit

    assert run(case()) == Exit(signal=15)


def test_how_a_foreign_process_ended_is_read_from_its_zombie():
    """A rank below torchrun is not ours to wait for."""

    async def case() -> tuple[Exit, Exit]:
        ends: list[Exit] = []
        for signum in (signal.SIGSEGV, None):
            code = SLEEPER if signum else "import time; time.sleep(0.3); raise SystemExit(7)"
            popen = subprocess.Popen([sys.executable, "-c", code])
            seen = asyncio.Event()
            process.Foreign(popen.pid, lambda _pid, how, seen=seen: (ends.append(how), seen.set()))
            if signum:
                popen.send_signal(signum)
            await asyncio.wait_for(seen.wait(), 5)
            popen.wait()
        return ends[0], ends[1]

    assert run(case()) == (Exit(signal=11), Exit(code=7))


@pytest.mark.skipif(
    tuple(map(int, os.uname().release.split(".")[:2])) < (6, 15),
    reason="the kernel tells of a reaped process from 6.15",
)
@pytest.mark.parametrize("how", [Exit(signal=11), Exit(code=7)])
def test_how_a_foreign_process_ended_is_known_also_when_its_parent_was_faster(how: Exit):
    """torchrun looks every tenth of a second: on a busy machine it has reaped a rank before the launcher looks."""

    async def case() -> Exit:
        popen = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read(); raise SystemExit(7)"], stdin=-1)
        ended: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        process.Foreign(popen.pid, lambda _pid, how: ended.set_result(how))
        if how.signal:
            popen.send_signal(how.signal)
        popen.communicate()  # reaped here: the loop had no turn since
        assert process.zombie_exit(popen.pid) == Exit()
        return await asyncio.wait_for(ended, 5)

    assert run(case()) == how


def test_the_guard_ends_what_a_killed_launcher_leaves(tmp_path: Path):
    """kill -9 of the launcher: children in other sessions die, the telemetry folder goes, the guard goes."""
    (tmp_path / "slots" / "a0").mkdir(parents=True)
    (tmp_path / "slots" / "a0" / "rank-00000.slot").write_bytes(b"x")
    launcher = tmp_path / "launcher.py"
    launcher.write_text(
        "import asyncio, os, sys\n"
        "from holdfast.launch import process\n"
        "async def main():\n"
        "    process.become_subreaper()\n"
        f"    process.start_guard('t-1', remove=[{str(tmp_path / 'slots')!r}])\n"
        "    env = {**os.environ, process.TAG: 't-1'}\n"
        '    child = \'import subprocess,sys,time;subprocess.Popen([sys.executable,"-c","import time;time.sleep(60)"],start_new_session=True);print(1,flush=True);time.sleep(60)\'\n'
        "    process.spawn([sys.executable, '-c', child], env=env, stdout=1)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    mark = f"guard-{os.getpid()}"
    popen = subprocess.Popen(
        [sys.executable, str(launcher)], env={**os.environ, "HOLDFAST_TEST_MARK": mark}, stdout=subprocess.PIPE
    )
    assert popen.stdout is not None
    assert popen.stdout.readline() == b"1\n"
    wait_for("guard, rank and its child", lambda: len(marked(mark)) == 4)
    popen.kill()
    popen.wait()
    wait_for("nothing left", lambda: not marked(mark), 5.0)
    assert not (tmp_path / "slots").exists()
    popen.stdout.close()
