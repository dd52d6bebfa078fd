"""Where a launcher is, from the environment of whoever started it, and what it was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import UsageError
from holdfast.launch.options import RunOptions
from holdfast.launch.place import read_place

SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_CLUSTER_NAME": "alps",
    "SLURM_STEP_ID": "0",
    "SLURM_NODEID": "1",
    "SLURMD_NODENAME": "n05",
    "SLURM_STEP_NODELIST": "n[03-05,12]",
    "SLURM_JOB_NODELIST": "n[03-05,12]",
    "SLURM_RESTART_COUNT": "2",
    "SLURM_SUBMIT_DIR": "/home/mei",
    "SLURM_JOB_PARTITION": "gpu",
}


def test_slurm_under_srun():
    """One launcher per node; node rank, allocation, restart count and the job's folder are Slurm's."""
    place = read_place(SLURM, job_dir="", nnodes=0)
    assert (str(place.job), place.job.cluster, place.node, place.node_rank) == ("4711", "alps", "n05", 1)
    assert place.nodes == ("n03", "n04", "n05", "n12")
    assert (place.restart_count, place.job_dir) == (2, Path("/home/mei/holdfast-run-4711"))
    assert (place.is_leader, place.address) == (False, "n05")


def test_a_site_may_say_by_which_address_nodes_reach_each_other():
    """Where node names do not resolve, as in a lab of one machine, the address that is given holds on Slurm too."""
    place = read_place({**SLURM, "HOLDFAST_NODE_ADDRESS": "127.0.0.1"}, job_dir="", nnodes=0)
    assert (place.node, place.address) == ("n05", "127.0.0.1")


def test_slurm_in_the_bare_batch_script():
    """Without srun there is this node alone, whatever the allocation."""
    environ = {key: value for key, value in SLURM.items() if not key.startswith(("SLURM_STEP", "SLURM_NODEID"))}
    place = read_place(environ, job_dir="", nnodes=0)
    assert (place.nodes, place.node_rank, place.address) == (("n05",), 0, "127.0.0.1")


def test_by_hand(tmp_path: Path):
    """A folder that is given again is the same job again; without one, a new name each time."""
    place = read_place({}, job_dir=str(tmp_path / "mine"), nnodes=0)
    assert (place.job.id, place.job_dir, place.is_leader) == ("mine", tmp_path / "mine", True)
    first, second = (read_place({}, job_dir="", nnodes=0).job_dir.name for _ in range(2))
    assert first.startswith("holdfast-run-")
    assert first != second


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"HOLDFAST_NNODES": "2"}, "HOLDFAST_NNODES=2, but HOLDFAST_JOB_ID is not set: give all 2 launchers"),
        ({"HOLDFAST_NNODES": "2", "JOB_COMPLETION_INDEX": "1"}, "and each its own HOLDFAST_NODE_RANK; to run on"),
        ({"PET_NNODES": "3", "PET_NODE_RANK": "0"}, "PET_NNODES=3, but HOLDFAST_JOB_ID is not set"),
    ],
)
def test_one_of_several_launchers_without_a_job_is_refused(environ: dict[str, str], says: str):
    """What is missing, and what to do, instead of as many trainings as there are nodes."""
    with pytest.raises(UsageError, match=says):
        read_place(environ, job_dir="", nnodes=0)


@pytest.mark.parametrize("environ", [{"HOLDFAST_NNODES": "1"}, {"PET_NNODES": "2"}, {"HOLDFAST_NNODES": ""}])
def test_a_count_that_is_no_job_of_several_nodes_is_no_reason_to_refuse(environ: dict[str, str]):
    """One node, torchrun's own default without a rank, and an empty variable."""
    assert len(read_place(environ, job_dir="", nnodes=0).nodes) == 1


def test_the_embedded_cluster(tmp_path: Path):
    """HOLDFAST_* come before anything else."""
    environ = {
        **SLURM, "HOLDFAST_JOB_ID": "7", "HOLDFAST_NODE": "node02", "HOLDFAST_NODELIST": "node01,node02",
        "HOLDFAST_NODE_RANK": "1", "HOLDFAST_JOB_DIR": str(tmp_path), "HOLDFAST_NODE_DIR": str(tmp_path / "n"),
        "HOLDFAST_RESTORE_STEP": "40", "HOLDFAST_DRILL_OK": "1", "HOLDFAST_GENERATION": "3",
    }  # fmt: skip
    place = read_place(environ, job_dir="", nnodes=0)
    assert (str(place.job), place.node_rank, place.restore_step, place.drill_ok) == ("7#3", 1, 40, True)
    assert place.node_dir == tmp_path / "n"


@pytest.mark.parametrize(
    ("environ", "nnodes", "says"),
    [
        ({"HOLDFAST_JOB_ID": "7", "HOLDFAST_NODE_RANK": "x"}, 0, "HOLDFAST_NODE_RANK='x' must be a whole number"),
        ({"HOLDFAST_JOB_ID": "7", "HOLDFAST_NODELIST": "a,b", "HOLDFAST_NODE_RANK": "2"}, 0, "outside the allocation"),
        ({"HOLDFAST_JOB_ID": "7", "HOLDFAST_NODELIST": "a,b", "HOLDFAST_NODE": "a"}, 4, "this allocation has 2 (a,b)"),
    ],
)
def test_contradictions_are_refused(environ: dict[str, str], nnodes: int, says: str):
    """One sentence that names the variable or option."""
    with pytest.raises(UsageError) as caught:
        read_place(environ, job_dir="/x", nnodes=nnodes)
    assert says in str(caught.value)


def options(**fields: object) -> RunOptions:
    return RunOptions(argv=("train.py",), **fields)  # type: ignore[arg-type]


def test_ranks_per_node_as_torchrun_counts_them():
    """A number, the processors, or the GPUs that are visible."""
    assert options(nproc_per_node="4").local_ranks({}) == 4
    assert options(nproc_per_node="gpu").local_ranks({"CUDA_VISIBLE_DEVICES": "0,2,3"}) == 3
    assert options(nproc_per_node="auto").local_ranks({"CUDA_VISIBLE_DEVICES": "1"}) == 1
    assert options(nproc_per_node="auto").local_ranks({"CUDA_VISIBLE_DEVICES": ""}) == options(
        nproc_per_node="cpu"
    ).local_ranks({})
    with pytest.raises(UsageError, match="no GPU is visible"):
        options(nproc_per_node="gpu").local_ranks({"CUDA_VISIBLE_DEVICES": ""})


def test_standbys_are_for_python_scripts_only():
    """A command cannot be imported ahead of time."""
    assert options().standby_count(3) == 3
    assert options(standbys="1").standby_count(3) == 1
    assert options(is_command=True).standby_count(3) == 0


def test_which_ranks_are_repeated():
    """Rank 0 unless asked otherwise; a command's whole output."""
    world = range(4)
    assert options().teed_ranks(world) == {0}
    assert options(tee="all").teed_ranks(world) == {0, 1, 2, 3}
    assert options(tee="1, 3,9").teed_ranks(world) == {1, 3}
    assert options(tee="none").teed_ranks(world) == set()
    assert options(is_command=True).teed_ranks(range(1)) == {0}
