"""Warm standbys: what they become must not differ from a cold start, and their deaths harm nothing."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.launch import standby as standby_module
from holdfast.launch.process import Exit
from holdfast.launch.standby import Activation, StandbyPool

PROBE = """
import os, sys, threading
def main():
    main_module = sys.modules["__main__"]
    facts = {
        "name": __name__, "file": __file__, "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path,
        "cwd": os.getcwd(), "globals": sorted(globals()), "package": __package__, "spec": getattr(__spec__, "name", None),
        "loader": type(__loader__).__name__, "flags": str(sys.flags), "env": sorted(os.environ.items()),
        "is_main": main_module.__dict__ is globals(), "stdout": (sys.stdout.line_buffering, sys.stdout.write_through),
        "thread": threading.current_thread().name, "builtins": type(__builtins__).__name__,
    }
    for key, value in facts.items():
        print(key, value)
if __name__ == "__main__":
    main()
    if "--fail" in sys.argv:
        raise ValueError("on purpose")
    sys.exit(3)
"""


async def ready(pool: StandbyPool, count: int = 1) -> None:
    async with asyncio.timeout(20):
        while pool.ready < count:
            pool.tend()
            await asyncio.sleep(0.01)


def make(
    tmp_path: Path, *, modules: list[str], size: int = 1, env: dict[str, str] | None = None, said=None
) -> StandbyPool:
    return StandbyPool(
        size=size,
        modules=modules,
        env=env if env is not None else dict(os.environ),
        cwd="/",
        log=tmp_path / "standby.log",
        may_renice=True,
        on_line=(said if said is not None else []).append,
    )


async def warm_run(
    tmp_path: Path, activation: Activation, *, modules: list[str], base: dict[str, str]
) -> tuple[Exit, str]:
    pool = make(tmp_path, modules=modules, env=base)
    await ready(pool)
    chosen = pool.take()
    assert chosen is not None
    out = tmp_path / "warm.txt"
    descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    child = chosen.activate(activation, descriptor, descriptor)
    os.close(descriptor)
    await asyncio.wait_for(child.exited.wait(), 20)
    for left in pool.close():
        await left.exited.wait()
    assert child.exit is not None
    return child.exit, out.read_text()


def cold_run(tmp_path: Path, argv: list[str], env: dict[str, str]) -> tuple[Exit, str]:
    out = tmp_path / "cold.txt"
    with out.open("wb") as file:
        done = subprocess.run(
            [sys.executable, "-u", *argv], env=env, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=file, stderr=file
        )
    return Exit.from_returncode(done.returncode), out.read_text()


@pytest.mark.parametrize("flag", ["--plain", "--fail"])
def test_a_script_finds_what_a_cold_start_gives_it(tmp_path: Path, flag: str):
    """argv, environment, folders, `__main__`, buffers, exit code and traceback are equal, byte for byte."""
    (tmp_path / "probe.py").write_text(PROBE)
    base = {**os.environ, "GONE": "1"}
    env = {**os.environ, "RANK": "3", "MASTER_PORT": "1"}
    argv = ["probe.py", flag, "--lr", "3"]
    activation = Activation(env=env, argv=argv, cwd=str(tmp_path), script="probe.py")
    warm = asyncio.run(warm_run(tmp_path, activation, modules=["json"], base=base))
    assert warm == cold_run(tmp_path, argv, env)
    assert warm[0] == Exit(code=1 if flag == "--fail" else 3)


def test_a_module_finds_what_a_cold_start_gives_it(tmp_path: Path):
    """As `python -m package.module`."""
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "probe.py").write_text(PROBE)
    env = {**os.environ, "RANK": "0"}
    activation = Activation(env=env, argv=["-m", "x"], cwd=str(tmp_path), module="pack.probe")
    warm = asyncio.run(warm_run(tmp_path, activation, modules=["json"], base=dict(os.environ)))
    assert warm == cold_run(tmp_path, ["-m", "pack.probe", "x"], env)


def test_a_module_that_cannot_be_preloaded_is_the_ranks_own_trouble(tmp_path: Path):
    """The standby is ready all the same; its log says what it could not import."""

    async def case() -> None:
        pool = make(tmp_path, modules=["no_such_module_here", "json"])
        await ready(pool)
        for child in pool.close():
            await child.exited.wait()

    asyncio.run(case())
    assert "cannot preload no_such_module_here" in (tmp_path / "standby.log").read_text()


def test_a_standby_that_dies_is_replaced(tmp_path: Path):
    """And one that is dead is never handed out."""

    async def case() -> None:
        pool = make(tmp_path, modules=["json"])
        await ready(pool)
        (first,) = pool.pids
        os.kill(first, 9)
        while first in pool.pids:
            await asyncio.sleep(0.005)
        assert pool.take() is None
        await ready(pool)
        assert pool.pids != [first]
        for child in pool.close():
            await child.exited.wait()

    asyncio.run(case())


def test_standbys_that_keep_dying_are_given_up_with_one_sentence(tmp_path: Path):
    """A preload that crashes the interpreter must not burn the node."""
    (tmp_path / "crash.py").write_text("import os\nos._exit(9)\n")
    said: list[str] = []

    async def case() -> None:
        pool = make(tmp_path, modules=["crash"], env={**os.environ, "PYTHONPATH": str(tmp_path)}, said=said)
        async with asyncio.timeout(20):
            while not said:
                pool.tend()
                await asyncio.sleep(0.01)
        for _ in range(20):
            pool.tend()
        assert pool.pids == []

    asyncio.run(case())
    assert len(said) == 1
    assert "restarts will start cold" in said[0]


def test_one_that_still_imports_becomes_the_rank_when_it_is_done(tmp_path: Path):
    """Half warm is still faster than cold."""
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(0.5)\n")
    (tmp_path / "probe.py").write_text("print('ran')\n")

    async def case() -> Exit | None:
        pool = make(tmp_path, modules=["slow"], env={**os.environ, "PYTHONPATH": str(tmp_path)})
        pool.tend()
        assert pool.ready == 0
        chosen = pool.take()
        assert chosen is not None
        descriptor = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
        child = chosen.activate(
            Activation(env=dict(os.environ), argv=["probe.py"], cwd=str(tmp_path), script="probe.py"),
            descriptor,
            descriptor,
        )
        os.close(descriptor)
        await asyncio.wait_for(child.exited.wait(), 20)
        return child.exit

    assert asyncio.run(case()) == Exit(code=0)
    assert (tmp_path / "out").read_text() == "ran\n"


def test_its_nice_value_is_the_launchers_own_again(tmp_path: Path):
    """A rank must not train at the priority of a standby."""
    (tmp_path / "probe.py").write_text("import os\nprint(os.getpriority(os.PRIO_PROCESS, 0))\n")
    activation = Activation(env=dict(os.environ), argv=["probe.py"], cwd=str(tmp_path), script="probe.py")
    _, text = asyncio.run(warm_run(tmp_path, activation, modules=["json"], base=dict(os.environ)))
    assert text == f"{os.getpriority(os.PRIO_PROCESS, 0)}\n"


def test_torch_takes_along_what_every_script_imports_later(tmp_path: Path):
    """`import torch` leaves out torch._dynamo, which the first optimizer imports (0.8 s), and CUDA stays untouched."""
    pytest.importorskip("torch")
    (tmp_path / "probe.py").write_text(
        "import sys, torch\nprint('torch._dynamo' in sys.modules, torch.cuda.is_initialized(), torch.initial_seed() >= 0)\n"
    )
    activation = Activation(env=dict(os.environ), argv=["probe.py"], cwd=str(tmp_path), script="probe.py")
    _, text = asyncio.run(warm_run(tmp_path, activation, modules=["torch"], base=dict(os.environ)))
    assert text == "True False True\n"


def test_the_bootstrap_imports_nothing_of_ours():
    """A standby has what its `--preload` names, and no more."""
    source = Path(standby_module._SCRIPT).read_text()
    assert "import holdfast" not in source
    assert "from holdfast" not in source
