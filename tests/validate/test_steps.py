"""Steps as processes on this machine: what they find, their limits, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from holdfast.validate import cpu, software, storage
from holdfast.validate.cpu import Spent, own_time
from holdfast.validate.registry import STEPS, SUITES, Options, Step, chosen
from holdfast.validate.results import Item, StepResult, Verdict
from holdfast.validate.running import run_step

pytestmark = pytest.mark.timeout(900)

SLEEPER = """
import os, subprocess, sys, time
from holdfast.os.programs import Background, Command
from holdfast.validate.results import Item

def hang(options):
    child = Background(Command(argv=(sys.executable, "-c", "import time; time.sleep(600)")))
    open(options.storage, "w").write(f"{os.getpid()} {child.pid}")
    time.sleep(600)

def crash(options):
    raise RuntimeError("NCCL error in: ProcessGroupNCCL.cpp:1, unhandled system error")

def die(options):
    sys.stderr.write("Segmentation fault of a driver\\n"); sys.stderr.flush()
    os._exit(139)

def chatter(options):
    print("a library that prints")
    return [Item(name="x.y", text="well")]
"""


@pytest.fixture
def odd_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Steps that misbehave, known to the child too."""
    package = tmp_path / "more"
    package.mkdir()
    (package / "odd_steps.py").write_text(SLEEPER)
    names = ("hang", "crash", "die", "chatter")
    (package / "sitecustomize.py").write_text(
        "import sys\n"
        "if '-m' in sys.orig_argv and 'holdfast.validate.step' in sys.orig_argv:\n"
        "    import holdfast.validate, odd_steps\n"
        "    sys.modules['holdfast.validate.odd_steps'] = odd_steps\n"
        "    from holdfast.validate.registry import STEPS, Step\n"
        + "".join(f"    STEPS[{n!r}] = Step(name={n!r}, call='odd_steps:{n}', limit_s=60.0)\n" for n in names)
    )
    for name in names:
        monkeypatch.setitem(STEPS, name, Step(name=name, call=f"odd_steps:{name}", limit_s=60.0))
    return {**os.environ, "PYTHONPATH": str(package)}


def run(name: str, env: dict[str, str] | None = None, limit_s: float | None = None, **options: object) -> StepResult:
    return asyncio.run(run_step(name, Options(**options), env=env or dict(os.environ), limit_s=limit_s))


def items(result: StepResult) -> dict[str, Item]:
    assert result.error == ""
    return {item.name: item for item in result.items}


def wait_gone(pids: list[int]) -> None:
    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=60)
    assert [p.pid for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []


def pids_in(path: Path) -> list[int]:
    return [int(word) for word in path.read_text().split()]


# --- limits and ends --------------------------------------------------------------------------------------------------


def test_a_step_that_hangs_is_killed_with_everything_it_started(odd_steps: dict[str, str], tmp_path: Path) -> None:
    """At its limit, the program that it runs included."""
    told = tmp_path / "pids"
    result = run("hang", odd_steps, limit_s=5.0, storage=str(told))
    assert (result.hung, result.error) == (True, "it did not end within 5 s and was killed")
    wait_gone(pids_in(told))


def test_a_step_dies_with_the_process_that_runs_it(odd_steps: dict[str, str], tmp_path: Path) -> None:
    """A worker that is killed with SIGKILL leaves neither its step nor the step's program."""
    told = tmp_path / "pids"
    code = (
        "import asyncio, os\nfrom holdfast.validate.registry import STEPS, Step, Options\n"
        "from holdfast.validate.running import run_step\n"
        "STEPS['hang'] = Step(name='hang', call='odd_steps:hang', limit_s=600.0)\n"
        f"asyncio.run(run_step('hang', Options(storage={str(told)!r}), env=dict(os.environ)))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], env=odd_steps) as worker:
        deadline = threading.Event()
        for _ in range(1200):
            if told.exists() and len(told.read_text().split()) == 2:
                break
            deadline.wait(0.05)
        pids = pids_in(told)
        worker.send_signal(signal.SIGKILL)
    wait_gone(pids)


def test_what_a_step_throws_or_dies_of_is_its_error(odd_steps: dict[str, str]) -> None:
    """An exception by its text, a death by its code and last words; both end the step, not the run."""
    assert "unhandled system error" in run("crash", odd_steps).error
    assert run("die", odd_steps).error == "it ended with 139: Segmentation fault of a driver"


def test_a_library_that_prints_does_not_spoil_the_result(odd_steps: dict[str, str]) -> None:
    """Standard output is kept for the result."""
    assert items(run("chatter", odd_steps))["x.y"].text == "well"


def test_every_step_of_the_registry_exists() -> None:
    """A name that points nowhere would be found only on a cluster."""
    import importlib

    for step in STEPS.values():
        module, _, function = step.call.partition(":")
        assert callable(getattr(importlib.import_module(f"holdfast.validate.{module}"), function))
    assert [suite.name for suite in chosen(())] == ["software", "cpu", "storage", "network", "shared"]
    assert len(chosen(("all",))) == len(SUITES)


# --- cpu --------------------------------------------------------------------------------------------------------------


def test_waiting_for_others_is_not_counted_against_the_node() -> None:
    """Run delay is taken out; what a quota holds back is not, although old kernels count it as run delay, too."""
    start = Spent(0.0, 0.0, 0.0, 0.0)
    waited = own_time(start, Spent(10.0, 1.0, 9.0, 0.0), 100.0)
    assert (waited.rate, waited.held, waited.others) == (pytest.approx(100.0), pytest.approx(0.0), pytest.approx(0.9))
    for run_delay in (8.0, 0.0):  # before Linux 6.18 throttled time is run delay
        held = own_time(start, Spent(9.0, 1.0, run_delay, 8.0), 90.0)
        assert (held.rate, held.held) == (pytest.approx(10.0), pytest.approx(8 / 9))
    stopped = own_time(start, Spent(5.0, 1.0, 0.0, 0.0), 100.0)
    assert (stopped.rate, stopped.held) == (pytest.approx(20.0), pytest.approx(0.8))


def test_a_process_that_is_stopped_most_of_the_time_is_seen_as_held_back() -> None:
    """SIGSTOP for 150 ms of every 200: a slow node as any user can make one, also beside other load."""

    async def body() -> StepResult:
        task = asyncio.create_task(run_step("cpu", Options(seconds=0.5), env=dict(os.environ)))
        me, stopped = psutil.Process(), 0
        while not task.done():
            steps = [p for p in me.children() if "holdfast.validate.step" in " ".join(_command(p))]
            for process in steps:
                _signal(process, signal.SIGSTOP)
                stopped += 1
            await asyncio.sleep(0.15)
            for process in steps:
                _signal(process, signal.SIGCONT)
            await asyncio.wait({task}, timeout=0.05)
        assert stopped > 5
        return await task

    found = items(asyncio.run(body()))
    assert found["cpu.held_back"].verdict is Verdict.WARN
    assert found["cpu.held_back"].value > 0.3
    assert found["cpu.correct"].verdict is Verdict.PASS


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _signal(process: psutil.Process, sig: int) -> None:
    with contextlib.suppress(psutil.Error):
        process.send_signal(sig)


def test_a_quota_is_read_from_both_versions_of_cgroups(tmp_path: Path) -> None:
    """The least of the group and those above it; no quota: the processors of the mask."""
    new, old, free = tmp_path / "a" / "b", tmp_path / "c", tmp_path / "d"
    for folder in (new, old, free):
        folder.mkdir(parents=True)
    (new / "cpu.max").write_text("max 100000\n")
    (new.parent / "cpu.max").write_text("150000 100000\n")
    (old / "cpu.cfs_quota_us").write_text("20000\n")
    (old / "cpu.cfs_period_us").write_text("100000\n")
    (free / "cpu.cfs_quota_us").write_text("-1\n")
    (free / "cpu.cfs_period_us").write_text("100000\n")
    assert (cpu.allowed([new], 8), cpu.allowed([old], 8), cpu.allowed([free], 8)) == (1.5, 0.2, 8.0)


def test_wrong_sums_are_told_from_unsteady_ones() -> None:
    """Against the known answer, and twice."""
    assert cpu.correct(cpu.KNOWN_DIGEST, cpu.KNOWN_DIGEST).verdict is Verdict.PASS
    assert cpu.correct("aa", "aa").why == "it computes wrong sums"
    assert cpu.correct(cpu.KNOWN_DIGEST, "aa").why == "the same computation gave two results"


# --- software, storage ------------------------------------------------------------------------------------------------


def test_the_first_version_on_the_path_counts(tmp_path: Path) -> None:
    """As Python imports it: an old install in the user's own folder hides the site's."""
    info = tmp_path / "torch-2.9.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.9.1\n")
    found = items(run("software", {**os.environ, "PYTHONPATH": str(tmp_path)}))
    assert (found["software.package.torch"].text, found["software.package.torch"].same) == ("2.9.1", True)
    assert found["software.kernel"].text


def test_variables_that_hurt_are_named_with_the_way_out() -> None:
    """Harmless values are not; an interface that is not there fails the node."""
    env = {
        "NCCL_P2P_DISABLE": "1", "NCCL_IB_DISABLE": "0", "NCCL_DEBUG": "INFO", "CUDA_LAUNCH_BLOCKING": "1",
        "NCCL_SOCKET_IFNAME": "ens5", "GLOO_SOCKET_IFNAME": "eth0", "FI_PROVIDER": "efa",
    }  # fmt: skip
    found = {item.name.removeprefix("software.env."): item for item in software.hurting(env, frozenset({"eth0", "lo"}))}
    assert set(found) == {"NCCL_P2P_DISABLE", "CUDA_LAUNCH_BLOCKING", "NCCL_SOCKET_IFNAME"}
    assert found["NCCL_SOCKET_IFNAME"].verdict is Verdict.FAIL
    assert found["NCCL_P2P_DISABLE"].advice == "unset it"
    for value in ("^lo,docker", "eth", "=eth0"):
        assert software.hurting({"NCCL_SOCKET_IFNAME": value}, frozenset({"eth0"})) == []


def test_limits_that_break_jobs_are_warnings() -> None:
    """Locked memory counts only where RDMA is."""
    assert {i.verdict for i in software.limits(rdma=False, memlock=8 << 20, nofile=20000, shm_bytes=8 << 30)} == {
        Verdict.PASS
    }
    bad = software.limits(rdma=True, memlock=8 << 20, nofile=1024, shm_bytes=64 << 20)
    assert {item.name: item.verdict for item in bad} == dict.fromkeys(
        ("software.limit.memlock", "software.limit.nofile", "software.shm"), Verdict.WARN
    )


def test_storage_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    """Every figure is there, and no file."""
    found = items(run("storage", storage=str(tmp_path)))
    for name in ("write", "read", "fsync", "metadata", "checkpoint"):
        assert found[f"storage.{name}"].value > 0
    assert found["storage.correct"].verdict is Verdict.PASS
    assert list(tmp_path.iterdir()) == []


def test_storage_that_returns_other_bytes_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One flipped byte in a file between write and read."""
    real = storage.write

    def corrupting(path: Path, rank: int, blocks: int) -> float:
        took = real(path, rank, blocks)
        with path.open("r+b") as file:
            file.seek(12345)
            file.write(b"\xff")
        return took

    monkeypatch.setattr(storage, "write", corrupting)
    found = {item.name: item for item in storage.measure(Options(storage=str(tmp_path)))}
    assert found["storage.correct"].verdict is Verdict.FAIL


def test_a_folder_that_cannot_be_written_fails_in_a_sentence(tmp_path: Path) -> None:
    """A file where a folder should be."""
    (tmp_path / "file").write_text("")
    found = items(run("storage", storage=str(tmp_path / "file")))
    assert found["storage.usable"].verdict is Verdict.FAIL
    assert "Not a directory" in found["storage.usable"].why
