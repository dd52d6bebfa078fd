"""The parts of a supervised step that need no Slurm: its folder and numbers, its output files, its tasks on a node."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.adapters.catalogue_files import read_catalogue, read_matcher
from holdfast.adapters.slurm import daemons
from holdfast.adapters.slurm.daemons import NodeAddress, answers_not, daemon_answers
from holdfast.adapters.slurm.own_job import JobFacts
from holdfast.adapters.slurm.steps import read_call
from holdfast.errors import UsageError
from holdfast.launch import slurm_nodes
from holdfast.launch.epoch import raise_epoch, read_epoch
from holdfast.launch.slurm_nodes import SlurmNodes
from holdfast.launch.step_files import StepFiles
from holdfast.launch.step_place import (
    allocated_nodes,
    check_allocation,
    claim_folder,
    excluded_before,
    floor_of,
    note_excluded,
)
from holdfast.launch.step_tasks import kill_all, tasks_of


def test_each_step_of_a_script_has_a_folder_that_a_requeue_goes_on_with(tmp_path: Path) -> None:
    """Two invocations, two folders; after a requeue the first invocation is in the first folder again."""
    assert claim_folder(tmp_path, 0).name == "step-0"
    assert claim_folder(tmp_path, 0).name == "step-1"
    assert claim_folder(tmp_path, 1).name == "step-0"


def test_attempts_and_epochs_count_on_over_all_steps(tmp_path: Path) -> None:
    """A later step must never use an epoch that fences it out, nor a number that the controller has seen."""
    first, second = claim_folder(tmp_path, 0), claim_folder(tmp_path, 0)
    (first / "logs" / "attempt-3").mkdir(parents=True)
    raise_epoch(first, 4)
    assert floor_of(tmp_path, second) == 3
    assert read_epoch(second) == 4


def test_a_node_left_by_one_step_is_known_to_the_next(tmp_path: Path) -> None:
    """Steps have journals of their own; what one has learnt of a node must not be lost."""
    note_excluded(claim_folder(tmp_path, 0), ["node02"])
    note_excluded(claim_folder(tmp_path, 0), ["node03"])
    assert excluded_before(tmp_path) == {"node02", "node03"}


def test_the_nodes_that_the_job_has_now_count() -> None:
    """A job that let a lost node go has fewer than its script's environment says."""
    environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[01-03]"}
    assert allocated_nodes(environ, JobFacts(nodes=("node01", "node03"))) == ("node01", "node03")
    assert allocated_nodes(environ, None) == ("node01", "node02", "node03")


@pytest.mark.parametrize(
    ("environ", "said"), [({}, "needs an allocation"), ({"SLURM_JOB_ID": "7", "SLURM_HET_SIZE": "2"}, "heterogeneous")]
)
def test_no_place_for_a_step_is_said_in_one_sentence(environ: dict[str, str], said: str) -> None:
    """Before anything is started."""
    with pytest.raises(UsageError, match=said):
        check_allocation(environ)


def test_output_files_are_read_from_where_the_attempt_begins_and_kept(tmp_path: Path) -> None:
    """What an attempt before has left is not read again; the rank comes from the name; the part is copied."""
    old = tmp_path / "out_7_0.log"
    old.write_text("RuntimeError: CUDA error: uncorrectable ECC error encountered\n")
    call = read_call(["-o", "out_%j_%t.log", "-D", str(tmp_path), "prog"])
    folder = tmp_path / "kept"
    folder.mkdir()
    files = StepFiles(call, {"SLURM_JOB_ID": "7"}, folder, user="mei")
    matcher = read_matcher(read_catalogue())
    assert files.pump(matcher, 1.0) == []
    with old.open("a") as file:
        file.write("torch.OutOfMemoryError: CUDA out of memory.\n")
    (tmp_path / "out_7_1.log").write_text("RuntimeError: CUDA error: uncorrectable ECC error encountered\n")
    seen = [(rank, match.rule.id) for _, rank, matches in files.pump(matcher, 2.0) for match in matches]
    assert {rank for rank, _ in seen} == {0, 1}
    assert not any(rank == 0 and "ecc" in rule for rank, rule in seen)
    files.keep()
    assert (folder / "out_7_0.log").read_text() == "torch.OutOfMemoryError: CUDA out of memory.\n"


def _task(environ: dict[str, str]) -> subprocess.Popen[bytes]:
    code = "import subprocess, sys; subprocess.Popen(['sleep', '60']); print('up', flush=True); sys.stdin.read()"
    task = subprocess.Popen(
        [sys.executable, "-c", code], env=os.environ | environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert task.stdout is not None
    assert task.stdout.readline() == b"up\n"
    return task


def test_a_nodes_tasks_are_found_by_job_folder_and_epoch_and_all_end() -> None:
    """Neither another step's tasks nor a newer attempt's are touched; what a task started ends with it."""
    marks = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "3", "SLURM_PROCID": "0", "HOLDFAST_JOB_DIR": "/j/step-0"}
    ours = _task({**marks, "HOLDFAST_EPOCH": "2"})
    others = [
        _task({**marks, "HOLDFAST_EPOCH": "3"}),
        _task({**marks, "HOLDFAST_EPOCH": "2", "HOLDFAST_JOB_DIR": "/j/step-1"}),
    ]
    try:
        found = tasks_of("77", "/j/step-0", lambda epoch: epoch <= 2)
        assert ours.pid in found
        assert len(found) == 2
        assert asyncio.run(kill_all(lambda: tasks_of("77", "/j/step-0", lambda epoch: epoch <= 2)))
        assert ours.wait(5) == -9
        assert [task.poll() for task in others] == [None, None]
    finally:
        asyncio.run(kill_all(lambda: tasks_of("77", "/j/step-0", lambda _: True)))
        asyncio.run(kill_all(lambda: tasks_of("77", "/j/step-1", lambda _: True)))
        for task in (ours, *others):
            task.wait(5)


def test_a_node_is_dead_when_its_daemon_takes_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused is evidence, a connection is not, nor an old look; where nothing is known nothing is claimed."""

    class Known:
        async def addresses(self, nodes: object) -> dict[str, NodeAddress]:
            return self.told

    async def scene() -> None:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        known = Known()
        known.told = {"node01": NodeAddress("127.0.0.1", port)}
        nodes = SlurmNodes(known, ["node01", "node02"])  # type: ignore[arg-type]
        assert not await nodes.is_dead("node01")
        assert not await nodes.is_dead("node02")
        server.close()
        await server.wait_closed()
        assert await nodes.is_dead("node01")
        monkeypatch.setattr(slurm_nodes, "FRESH_S", 1000.0)
        nodes.look_ahead("node01")
        nodes.look_ahead("node01")  # what was seen then counts, although somebody listens there by now
        await asyncio.wait(list(nodes._ahead.values()))
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", port)
        assert await nodes.is_dead("node01")
        nodes._ahead["node01"] = asyncio.create_task(asyncio.sleep(0, (True, asyncio.get_running_loop().time() - 1001)))
        assert not await nodes.is_dead("node01")
        server.close()
        await server.wait_closed()
        assert await daemon_answers(None)

    asyncio.run(scene())


def test_a_daemon_that_did_not_answer_once_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost packet, or a starved node, must not cost the job a healthy node: no answer counts when it comes twice."""
    told: list[bool] = []

    async def answers(*_: object) -> bool:
        return told.pop(0)

    monkeypatch.setattr(daemons, "daemon_answers", answers)
    for answered, is_gone in (([True], False), ([False, True], False), ([False, False], True)):
        told[:] = answered
        assert asyncio.run(answers_not(None)) is is_gone
        assert told == []


def test_a_number_that_is_no_tasks_any_more_is_left_alone() -> None:
    """What a look has found may have ended, and its number be another's, by the time of the signal."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as stranger:
        looks = [{stranger.pid}]
        assert asyncio.run(kill_all(lambda: looks.pop() if looks else set()))
        assert stranger.poll() is None
        stranger.kill()
