"""What a restart waits for: only what starting ranks takes is loaded, and leaving waits for nobody who is gone."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.launch.conftest import counter, marked

from holdfast.adapters.policy_files import packaged_presets, read_policy
from holdfast.errors import JournalDamagedError
from holdfast.launch.frames import AskEvacuate, Beat, Hello
from holdfast.launch.link import FollowerLink, LeaderPort, OpenNetwork
from holdfast.launch.place import JobPlace
from holdfast.model.cluster import JobKey
from holdfast.model.evidence import Domain
from holdfast.model.policy import Policy

HEAVY = ("sqlalchemy", "alembic", "structlog", "httpx", "hyperscan", "ClusterShell", "rich", "psutil", "pydantic")
JUDGEMENT = ("holdfast.controller", "holdfast.decide", "holdfast.adapters.policy_files", "holdfast.detect.matcher")


@pytest.mark.parametrize("module", ["program", "leading"])
def test_ranks_start_without_the_judgement(module: str):
    """Neither follower nor leader load database, matcher, engine or HTTP client before their ranks run."""
    code = f"import sys, holdfast.launch.{module}; print(*sys.modules)"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert sorted(loaded & {*HEAVY, *JUDGEMENT}) == []


def test_the_leader_may_assume_the_default_policy():
    """Without a file and a name the leader does not read the presets: what it then goes by is what they would give."""
    assert read_policy(None, packaged_presets())[0].for_job("any", "") == Policy()


def place(job_dir: Path, rank: int) -> JobPlace:
    nodes = ("n1", "n2")
    return JobPlace(job=JobKey("c", "7"), job_dir=job_dir, node=nodes[rank], node_rank=rank, nodes=nodes)


def leader_port(job_dir: Path, joined: asyncio.Event, on_lost: Callable[[str, str, Domain], None]) -> LeaderPort:
    return LeaderPort(
        place(job_dir, 0),
        network=OpenNetwork(),
        lease_s=3.0,
        may_grant=lambda: True,
        on_join=lambda _: joined.set(),
        on_report=lambda _node, _report: None,
        on_lost=on_lost,
    )


def follower_link(job_dir: Path) -> FollowerLink:
    hello = Hello(node="n2", local_ranks=1, address="127.0.0.1", attempt=None)
    side = SimpleNamespace(
        hello=lambda: hello,
        next_beat=lambda: (Beat(beat=1), 1.0),
        welcomed=lambda _: None,
        asked=lambda _: None,
        broken=lambda _: None,
    )
    return FollowerLink(place(job_dir, 1), OpenNetwork(), side)


def test_leaving_does_not_wait_for_a_follower_that_is_gone(tmp_path: Path):
    """What was queued for it counts as done as soon as its connection is; both ends' flushes return."""

    async def work() -> None:
        joined = asyncio.Event()
        port = leader_port(tmp_path, joined, lambda _node, _why, _domain: None)
        await port.open()
        link = follower_link(tmp_path)
        running = asyncio.create_task(link.run())
        await joined.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        for _ in range(2000):
            port.send("n2", AskEvacuate(attempt=0))
        await port.flush(20.0)
        link.send(AskEvacuate(attempt=0))  # type: ignore[arg-type]
        await link.flush(20.0)
        await port.close()

    asyncio.run(asyncio.wait_for(work(), 10))


@pytest.mark.parametrize(("is_reset", "domain"), [(True, Domain.NETWORK), (False, Domain.PLATFORM)])
def test_a_follower_that_goes_without_a_word_is_lost_by_its_link(tmp_path: Path, is_reset: bool, domain: Domain):
    """A reset and an end are told apart, and neither as a fault of the machine."""

    async def work() -> None:
        lost: asyncio.Future[tuple[str, str, Domain]] = asyncio.get_running_loop().create_future()
        joined = asyncio.Event()
        port = leader_port(tmp_path, joined, lambda *told: lost.set_result(told))
        await port.open()
        link = follower_link(tmp_path)
        running = asyncio.create_task(link.run())
        await joined.wait()
        (follower,) = port.followers.values()
        if is_reset:
            follower.wire._frames._reader.set_exception(ConnectionResetError(104, "Connection reset by peer"))
        else:
            follower.wire._frames._reader.feed_eof()
        node, evidence, about = await lost
        assert (node, "reset" in evidence, about) == ("n2", is_reset, domain)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await port.close()

    asyncio.run(asyncio.wait_for(work(), 10))


@pytest.mark.cluster
def test_a_damaged_journal_ends_the_job_with_its_sentence(launched, tmp_path: Path):
    """It is found only after the ranks have started: they are ended, and what is wrong is said, not what follows from it."""
    first = launched("--standbys", "0", *counter(tmp_path, steps=20))
    assert first.wait() == 0
    with sqlite3.connect(tmp_path / "job" / "journal.db") as connection:
        connection.execute("DELETE FROM snapshots")
        connection.execute("DELETE FROM events WHERE seq = (SELECT max(seq) - 1 FROM events)")
    second = launched("--standbys", "0", *counter(tmp_path, steps=100_000))
    assert second.wait() == JournalDamagedError.exit_code
    assert "damaged (1 of" in second.text().splitlines()[-1]
    assert not marked(second.mark)
