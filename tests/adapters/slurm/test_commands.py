"""Argument lists: checked names, one line of reason, and what must never be asked of Slurm."""

from __future__ import annotations

import pytest

from holdfast.adapters.slurm import commands
from holdfast.adapters.slurm.tool import error_of
from holdfast.errors import PermanentOrderError, TemporaryOrderError


@pytest.mark.parametrize("name", ["", "-x", "a b", "node01;reboot", "node01\n", "$(id)", "node[01-02]", "@all", "a,b"])
def test_what_is_no_node_name_never_reaches_a_command(name: str) -> None:
    """Options, lists, groups and shells' words are refused."""
    with pytest.raises(PermanentOrderError):
        commands.set_nodes([name], "DRAIN", "x")


@pytest.mark.parametrize("ref", ["", "-1", "12.0", "12;13", "12,13", "all", "12_", "root"])
def test_what_is_no_job_id_never_reaches_a_command(ref: str) -> None:
    """`scancel` with an empty or other word could mean many jobs."""
    with pytest.raises(PermanentOrderError):
        commands.cancel(ref)


def test_array_tasks_and_components_are_named_alone() -> None:
    """The last task of an array has the array's own id, so it is named by its number."""
    assert commands.control("requeuehold", "11_3") == ("scontrol", "requeuehold", "11_3")
    assert commands.control("release", "12+0") == ("scontrol", "release", "12+0")


def test_only_numbered_steps_are_killed() -> None:
    """Without a step's number `scancel --signal=KILL` would cancel the job, and its requeue with it."""
    assert commands.steps_of("7.0\n7.batch\n7.extern\n3_1.2\n") == ("7.0", "3_1.2")
    assert commands.kill_steps(["7.0"]) == ("scancel", "--signal=KILL", "7.0")
    for wrong in ("7", "7.batch", ""):
        with pytest.raises(PermanentOrderError):
            commands.kill_steps([wrong])


def test_nodes_of_one_wish_are_one_command() -> None:
    """Folded by ClusterShell; the reason is one bounded line, whatever it was."""
    argv = commands.set_nodes(["node03", "node01", "node02"], "DRAIN", "[holdfast] Xid 74\nState=IDLE" + "x" * 999)
    assert argv[:4] == ("scontrol", "update", "NodeName=node[01-03]", "State=DRAIN")
    assert argv[4].startswith("Reason=[holdfast] Xid 74 State=IDLE")
    assert len(argv) == 5
    assert len(argv[4]) <= commands.REASON_MAX + len("Reason=")


def test_a_comment_is_left_alone_unless_one_is_given() -> None:
    """An empty one clears it; a state or a reason that is not given stays as it is."""
    assert commands.set_nodes(["n1"], "RESUME") == ("scontrol", "update", "NodeName=n1", "State=RESUME")
    assert commands.set_nodes(["n1"], "RESUME", comment="")[-1] == "Comment="
    assert commands.set_nodes(["n1"], reason="a\nb") == ("scontrol", "update", "NodeName=n1", "Reason=a b")


@pytest.mark.parametrize("name", ["", "a,b", "batch Nodes=ALL", "-x"])
def test_what_is_no_partition_name_never_reaches_a_command(name: str) -> None:
    """One partition gets a list of checked names."""
    assert commands.set_partition("batch", ["n2", "n1"])[2:] == ("PartitionName=batch", "Nodes=n[1-2]")
    with pytest.raises(PermanentOrderError):
        commands.set_partition(name, ["n1"])


def test_a_start_is_pulled_in_by_seconds() -> None:
    """Never `now`, unless a test asks for the race."""
    assert commands.start_in("7", 1)[-1] == "StartTime=now+1"
    assert commands.start_in("7", 0)[-1] == "StartTime=now"
    assert commands.start_in("7", 0, "why\nso")[3:] == ("AdminComment=why so", "StartTime=now")


def test_no_exclusion_is_an_empty_list() -> None:
    """The owner had none, and ours are taken back."""
    assert commands.exclude("7", [])[-1] == "ExcNodeList="
    assert commands.exclude("7", ["node02", "node01"])[-1] == "ExcNodeList=node[01-02]"


def test_a_drained_node_is_rebooted_without_asap() -> None:
    """ASAP puts a node back into service after its boot; a drained one must stay drained."""
    assert "ASAP" not in commands.reboot(["node01"], "x", drained=True)
    assert "ASAP" in commands.reboot(["node01"], "x", drained=False)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("slurm_load_jobs error: Socket timed out on send/recv operation", TemporaryOrderError),
        ("Slurm temporarily unable to accept job, sleeping and retrying", TemporaryOrderError),
        ("slurm_update error: Transient error, try again", TemporaryOrderError),
        ("Unable to contact slurm controller (connect failure)", TemporaryOrderError),
        ("slurm_load_jobs error: Zero Bytes were transmitted or received", TemporaryOrderError),
        ("Invalid job id specified for job 999", PermanentOrderError),
        ("slurm_update error: Access/permission denied", PermanentOrderError),
        ("Requested operation is presently disabled for job 311", PermanentOrderError),
        ("", PermanentOrderError),
    ],
)
def test_errors_are_sorted(words: str, kind: type[Exception]) -> None:
    """Busy or away is worth another try; a refusal is not."""
    assert isinstance(error_of(("scontrol", "x"), 1, words), kind)
