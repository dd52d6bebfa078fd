"""A fleet of real worker processes on this machine: pairs, dead peers, a dead leader, strangers, a resumed run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import psutil
import pytest

from holdfast.adapters.clock import SystemClock
from holdfast.errors import LinkError, UserError
from holdfast.os.frames import meet
from holdfast.validate import collectives
from holdfast.validate.examination import Examination
from holdfast.validate.hands import Fleet
from holdfast.validate.paired import pair_test
from holdfast.validate.registry import Options, chosen
from holdfast.validate.results import Item, Run, StepResult, Verdict
from holdfast.validate.results_kept import Results
from holdfast.validate.under_test import Asked, NodesUnderTest
from holdfast.validate.wire import Hello, Welcome
from holdfast.validate.worker import Worker

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

SECRET = "a secret of this test"
WORKER = """
import asyncio, os, sys
from holdfast.validate.wire import Hello
from holdfast.validate.worker import Worker
name, rank, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
hello = Hello(node=name, rank=rank, boot="one machine", address="127.0.0.1")
asyncio.run(Worker(hello, dict(os.environ)).run("127.0.0.1", port, sys.argv[4]))
"""
Workers = dict[str, asyncio.subprocess.Process]


@contextlib.asynccontextmanager
async def fleet_of(count: int, **env: dict[str, str]) -> AsyncIterator[tuple[Fleet, Workers]]:
    """A leader here and so many workers; `env` gives a node's own environment."""
    fleet = Fleet(count, SECRET, [f"n{rank}" for rank in range(count)])
    port = await fleet.open("127.0.0.1")
    workers: Workers = {}
    try:
        for rank in range(count):
            name = f"n{rank}"
            workers[name] = await asyncio.create_subprocess_exec(
                sys.executable, "-c", WORKER, name, str(rank), str(port), SECRET,
                env={**os.environ, **env.get(name, {})}, stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
        await fleet.gather(300.0)
        yield fleet, workers
    finally:
        await fleet.close()
        for process in workers.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def examination(fleet: Fleet, suites: str, folder: Path | None = None, *, resume: bool = False, **more) -> Examination:
    nodes = NodesUnderTest(
        fleet,
        Asked(suites=chosen(tuple(suites.split(","))), options=Options(seconds=0.2, **more.pop("options", {}))),
        clock=SystemClock(),
        results=Results(folder, resume=resume),
        **more,
    )
    return Examination(nodes, baselines=lambda _kind: None)


def steps_of(process: asyncio.subprocess.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(process.pid).children(recursive=True)
    return []


async def until(holds: Callable[[], object], limit_s: float = 60.0) -> None:
    deadline = asyncio.get_running_loop().time() + limit_s
    while not holds():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.02)


def test_pairs_and_a_shared_folder_on_a_healthy_fleet(tmp_path: Path) -> None:
    """Four nodes pass; figures of the network stand with each; locks and files are seen by all, and removed."""

    async def body() -> Run:
        async with fleet_of(4) as (fleet, _):
            return await examination(fleet, "network,shared", options={"shared": str(tmp_path)}).run()

    run = asyncio.run(body())
    assert run.verdict is Verdict.PASS, [item for node in run.nodes for item in node.items if item.why]
    for node in run.nodes:
        assert node.item("network.latency").value > 0
        assert node.item("network.bandwidth").value > 0
        assert node.item("shared.counter").text == "40"
        assert node.item("shared.seen").text == "files of 4 nodes"
    assert run.rounds == ("round 1: 2 tests, 0 failed",)
    assert list(tmp_path.iterdir()) == []


def test_a_node_that_computes_wrong_sums_is_named_by_pairs_and_alone(tmp_path: Path) -> None:
    """Its interpreter's sums are spoiled from outside; the three others are not blamed."""
    (tmp_path / "sitecustomize.py").write_text(
        "import math\nright = math.fsum\nmath.fsum = lambda values: right(values) * (1 + 2**-50)\n"
    )

    async def body() -> Run:
        async with fleet_of(4, n2={"PYTHONPATH": str(tmp_path)}) as (fleet, _):
            return await examination(fleet, "network,cpu").run()

    run = asyncio.run(body())
    assert run.blamed == ("n2",), [(node.node, item) for node in run.nodes for item in node.items if item.why]
    (node,) = (node for node in run.nodes if node.node == "n2")
    assert node.item("cpu.correct").why == "it computes wrong sums"
    assert "the two computed different sums" in node.item("network.pairs").why


@pytest.mark.parametrize(
    ("suites", "groups"),
    [("network,nccl", [["n0", "n1", "n3"]]), ("nccl", [["n0", "n1", "n2", "n3"], ["n0", "n1", "n3"]])],
)
def test_a_node_at_fault_in_the_pairs_does_not_stretch_the_collectives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suites: str, groups: list[list[str]]
) -> None:
    """It is left out of every sweep and its line says why; the others are measured. A run of collectives alone has the
    paired tests as soon as the whole group fails."""
    (tmp_path / "sitecustomize.py").write_text(
        "import math\nright = math.fsum\nmath.fsum = lambda values: right(values) * (1 + 2**-50)\n"
    )
    swept: list[list[str]] = []

    async def sweep(_: NodesUnderTest, ranks: Sequence[Hello], **_kind: object) -> list[StepResult]:
        swept.append([hello.node for hello in ranks])
        slow = (Item(name="nccl.sweep.slow", verdict=Verdict.FAIL, why="too slow"),) * ("n2" in swept[-1])
        return [StepResult(step="sweep", items=slow) for _ in ranks]

    monkeypatch.setattr(collectives, "sweep", sweep)

    async def body() -> Run:
        async with fleet_of(4, n2={"PYTHONPATH": str(tmp_path)}) as (fleet, _):
            return await examination(fleet, suites).run()

    run = asyncio.run(body())
    assert swept == groups
    assert run.blamed == ("n2",)
    (node,) = (node for node in run.nodes if node.node == "n2")
    assert node.item("nccl.group").text == "left out: another test finds it at fault"


def test_a_node_killed_in_the_middle_is_reported_and_its_partner_is_not_blamed() -> None:
    """SIGKILL to a worker whose steps run: the run ends, the others pass, nothing of it is left."""

    async def body() -> tuple[Run, list[psutil.Process]]:
        async with fleet_of(4) as (fleet, workers):
            left: list[psutil.Process] = []

            async def kill() -> None:
                await until(lambda: steps_of(workers["n1"]))
                left.extend(steps_of(workers["n1"]))
                workers["n1"].send_signal(signal.SIGKILL)

            killing = asyncio.create_task(kill())
            run = await examination(fleet, "cpu,network").run()
            await killing
            return run, left

    run, left = asyncio.run(body())
    assert run.blamed == ("n1",)
    (node,) = (node for node in run.nodes if node.node == "n1")
    assert "its line ended in the middle of the run" in node.lost
    others = {one.verdict for one in run.nodes if one.node != "n1"}
    assert others <= {Verdict.PASS, Verdict.WARN}, "a warning is about the speed of this machine, and blames nobody"
    psutil.wait_procs(left, timeout=60)
    assert [process for process in left if process.is_running()] == []


def test_a_partner_that_is_killed_in_a_pair_ends_the_pair_and_blames_nobody_else() -> None:
    """The one that stays says within its limit that the partner left."""

    async def body() -> tuple[str, dict[str, str]]:
        async with fleet_of(2) as (fleet, workers):
            test = asyncio.create_task(
                pair_test(examination(fleet, "network").nodes, fleet.nodes[0], fleet.nodes[1], key="x")
            )
            await until(lambda: steps_of(workers["n1"]))
            workers["n1"].send_signal(signal.SIGKILL)
            return (await test).error, fleet.lost

    error, lost = asyncio.run(body())
    assert error
    assert set(lost) == {"n1"}


def test_a_silent_node_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is stopped (a hung kernel looks so) is not waited for until its step's limit."""
    monkeypatch.setattr("holdfast.validate.hands.SILENT_S", 8.0)

    async def body() -> Run:
        async with fleet_of(3) as (fleet, workers):
            workers["n2"].send_signal(signal.SIGSTOP)
            try:
                return await examination(fleet, "software").run()
            finally:
                workers["n2"].send_signal(signal.SIGCONT)

    run = asyncio.run(body())
    assert {node.node: node.lost for node in run.nodes}["n2"] == "it said nothing for 8 s"


def test_workers_end_with_their_leader_and_leave_nothing() -> None:
    """The leader's line breaks while a step runs."""

    async def body() -> list[psutil.Process]:
        async with fleet_of(2) as (fleet, workers):
            asking = asyncio.create_task(fleet.ask("n1", "cpu", Options(seconds=600.0)))
            await until(lambda: steps_of(workers["n1"]))
            left = steps_of(workers["n1"])
            asking.cancel()
            for line in fleet._lines.values():
                line.frames._writer.transport.abort()
            async with asyncio.timeout(60):
                codes = [await process.wait() for process in workers.values()]
            assert all(codes), "a leader that broke off is no good end"
            return left

    left = asyncio.run(body())
    assert left
    psutil.wait_procs(left, timeout=60)
    assert [process for process in left if process.is_running()] == []


def test_who_never_joins_is_reported() -> None:
    """By name, where the scheduler said who should."""

    async def body() -> Run:
        fleet = Fleet(2, SECRET, ["n0", "n1"])
        port = await fleet.open("127.0.0.1")
        worker = asyncio.create_task(
            Worker(Hello(node="n0", rank=0, boot="b"), dict(os.environ)).run("127.0.0.1", port, SECRET)
        )
        try:
            await until(lambda: "n0" in fleet._lines)
            await fleet.gather(0.5)
            return await examination(fleet, "software").run()
        finally:
            await fleet.close()
            await worker

    run = asyncio.run(body())
    assert {node.node: node.lost for node in run.nodes} == {"n0": "", "n1": "it did not join within 0.5 s"}
    assert run.blamed == ("n1",)


def test_strangers_are_not_let_in_on_either_side() -> None:
    """A worker without the secret, and a leader without it."""

    async def body() -> tuple[str, str]:
        fleet = Fleet(1, SECRET)
        port = await fleet.open("127.0.0.1")
        hello = Hello(node="n0", rank=0, boot="b")
        with pytest.raises(LinkError) as refused:
            await Worker(hello, {}).run("127.0.0.1", port, "another secret")
        with pytest.raises(LinkError) as nobody:
            await fleet.gather(0.2)
        await fleet.close()

        async def false_leader(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await (await meet(reader, writer, b"another secret", is_leader=True)).send(Welcome())

        server = await asyncio.start_server(false_leader, "127.0.0.1", 0)
        async with server:
            with pytest.raises(LinkError, match="not this run's leader"):
                await Worker(hello, {}).run("127.0.0.1", server.sockets[0].getsockname()[1], SECRET)
        return str(refused.value), str(nobody.value)

    refused, nobody = asyncio.run(body())
    assert "closed the connection" in refused or "line broke" in refused
    assert nobody == "no node joined within 0.2 s"


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path) -> None:
    """Steps that ended well are taken from the folder; id and time stay; a torn last line is left out."""

    async def body() -> tuple[Run, Run, int]:
        async with fleet_of(2) as (fleet, _):
            first = await examination(fleet, "software,cpu", tmp_path).run()
            steps = tmp_path / "steps.jsonl"
            lines = steps.read_bytes().splitlines(keepends=True)
            steps.write_bytes(b"".join(lines[:-1]) + lines[-1][:20])
            again = examination(fleet, "software,cpu", tmp_path, resume=True)
            second = await again.run(resume=True)
            with pytest.raises(UserError, match="holds a run of software, cpu"):
                await examination(fleet, "software", tmp_path, resume=True).run(resume=True)
            return first, second, again.nodes.results.taken

    first, second, taken = asyncio.run(body())
    assert (second.id, second.at) == (first.id, first.at)
    assert taken == 3
    assert second.verdict is Verdict.PASS
    assert "3 steps were taken from the interrupted run" in second.notes
