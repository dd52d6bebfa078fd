"""What Slurm's tools print, recorded from four versions, is read into the same facts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.adapters.slurm.node_output import nodes_of_json, nodes_of_text, states_of_node
from holdfast.adapters.slurm.output import (
    ends_of_sacct,
    exit_of,
    facts_of_config,
    folded,
    jobs_of_json,
    jobs_of_text,
    node_names,
    number,
    seconds,
    text,
    time_of,
    words,
)
from holdfast.adapters.slurm.views import job_view
from holdfast.errors import WireError
from holdfast.model.cluster import JobKey

RECORDED = Path(__file__).parent / "recorded"
VERSIONS = ("22.05", "23.02", "23.11", "25.11")


def recorded(version: str, name: str) -> bytes:
    return (RECORDED / version / name).read_bytes()


def many():
    return {job.id: job for job in jobs_of_json(recorded("22.05", "squeue--json-many.json"))}


# --- shapes ---


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 3),
        ("4", 4),
        (2.0, 2),
        ({"set": True, "infinite": False, "number": 5}, 5),
        ({"set": False, "infinite": False, "number": 5}, None),
        ({"set": True, "infinite": True, "number": 5}, None),
        (None, None),
        (True, None),
        ("many", None),
        ([1], None),
    ],
)
def test_a_number_has_many_shapes(value, expected) -> None:
    """A plain number, a string of one, and the object of newer versions are one number; the rest is none."""
    assert number(value) == expected


def test_words_have_many_shapes() -> None:
    """`A+B`, `A,B` and a list are the same words."""
    assert words("IDLE+DRAIN") == words(["IDLE", "DRAIN"]) == words("IDLE,DRAIN") == ("IDLE", "DRAIN")
    assert words(None) == words(7) == ()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (768, (3, None)),
        (9, (0, 9)),
        ({"set": True, "infinite": False, "number": 256}, (1, None)),
        ({"status": ["ERROR"], "return_code": {"set": True, "number": 3}, "signal": {"id": {"set": False}}}, (3, None)),
        (
            {"status": ["SIGNALED"], "return_code": {"set": False}, "signal": {"id": {"set": True, "number": 15}}},
            (0, 15),
        ),
        ({"return_code": 1, "signal": {"signal_id": 11, "name": "SEGV"}}, (1, 11)),
        (None, (None, None)),
    ],
)
def test_an_exit_code_has_many_shapes(value, expected) -> None:
    """A wait status, that in an object, and code and signal apart all tell code and signal."""
    assert exit_of(value) == expected


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_no_shape_of_a_field_breaks_the_reader(value) -> None:
    """Whatever a future version prints in a field, it is read as something or as nothing."""
    number(value)
    words(value)
    text(value)
    seconds(value)
    exit_of(value)


def test_node_lists_are_expanded_and_folded() -> None:
    """Brackets, padding and lists; what is no node list gives nothing, and group syntax is not resolved."""
    assert node_names("node[01-03,07]") == ("node01", "node02", "node03", "node07")
    assert node_names("(null)") == node_names("") == ()
    assert node_names("node[") == ()
    assert folded(["node03", "node01", "node02"]) == "node[01-03]"


def test_times_are_utc() -> None:
    """`scontrol`'s times, printed with TZ=UTC."""
    assert time_of("1970-01-02T00:00:01") == 86401.0
    assert time_of("Unknown") == time_of("None") == 0.0


# --- jobs ---


@pytest.mark.parametrize("version", VERSIONS)
def test_jobs_of_every_version_are_read(version: str) -> None:
    """Id, state, owner, nodes and counts come out the same whatever form the version gives them."""
    jobs = {job.id: job for job in jobs_of_json(recorded(version, "squeue--json--states=all.json"))}
    first = jobs["1"]
    assert (first.user, first.uid, first.gid, first.partition) == ("root", 0, 0, "main")
    assert first.array_task is None
    assert first.submitted_at > 1.7e9
    if version == "25.11":
        assert (first.states, first.nodes, first.batch) == (
            {"COMPLETED"},
            ("node01", "node02", "node03", "node04"),
            False,
        )
        assert (jobs["2"].states, jobs["2"].signal) == ({"CANCELLED"}, 15)
        assert jobs["2"].stdout == "/lab/t/lat/%j.out"
        return
    assert (first.states, first.restart_count, first.comment) == ({"RUNNING"}, 1, "c")
    assert (first.nodes, first.want_nodes, first.requeue) == (("node01", "node02"), 2, True)
    second = jobs["2"]
    assert (second.states, second.exit_code, second.signal) == ({"FAILED"}, 3, None)
    assert second.reason == "NonZeroExitCode"


def test_many_kinds_of_jobs_are_told_apart() -> None:
    """Arrays by task, heterogeneous components by offset, held by priority, and what depends on what."""
    jobs = many()
    assert (jobs["1"].states, jobs["1"].excluded) == ({"RUNNING"}, ("node05",))
    assert jobs["1"].comment.startswith('{"APS"')
    assert [(job.id, job.array_job, job.array_task, job.ref) for job in jobs.values() if job.array_job] == [
        ("5", 2, 1, "2_1"),
        ("2", 2, None, "2"),
    ]
    assert jobs["2"].array_text == "2-4%1"
    assert [(jobs[i].het_job, jobs[i].het_offset) for i in ("3", "4")] == [(3, 0), (3, 1)]
    assert (jobs["6"].states, jobs["6"].priority, jobs["6"].reason) == ({"PENDING"}, 0, "JobHeldUser")
    assert "afterok:1" in jobs["7"].dependency
    assert (jobs["9"].exit_code, jobs["9"].signal) == (3, None)
    assert (jobs["10"].exit_code, jobs["10"].signal) == (0, 11)
    assert (jobs["11"].states, jobs["11"].restart_count) == ({"COMPLETING"}, 1)


def test_a_forged_name_stays_a_name() -> None:
    """A line end and a whole record in a job's name are its name and nothing else; no such job appears."""
    jobs = many()
    assert jobs["8"].name.startswith("evil\nJobId=1 JobName=forged")
    assert (jobs["1"].name, jobs["1"].states) != ("forged", {"FAILED"})
    assert len(jobs) == 11


def test_text_of_jobs_is_read_and_a_forged_record_is_not_believed() -> None:
    """Where there is no JSON, an id that stands in two records is believed in neither; the rest agrees with the JSON."""
    jobs, doubtful = jobs_of_text(recorded("22.05", "scontrol-show-job-o.txt").decode())
    assert doubtful == ["1", "8"]
    told = many()
    assert {job.id for job in jobs} == set(told) - set(doubtful)
    for job in jobs:
        same = told[job.id]
        assert (job.states, job.user, job.uid, job.nodes, job.restart_count, job.exit_code, job.signal) == (
            same.states, same.user, same.uid, same.nodes, same.restart_count, same.exit_code, same.signal,
        )  # fmt: skip
        assert (job.array_job, job.array_task, job.requeue, job.workdir) == (
            same.array_job, same.array_task, same.requeue, same.workdir,
        )  # fmt: skip


def test_what_is_no_list_of_jobs_is_refused() -> None:
    """A message in place of the document is an error, not an empty cluster."""
    with pytest.raises(WireError):
        jobs_of_json(b"squeue: error: something")


# --- nodes ---


@pytest.mark.parametrize("version", VERSIONS)
def test_nodes_of_every_version_are_read(version: str) -> None:
    """Names, states, GPUs and partitions, from the JSON of each version."""
    name = "sinfo--json.json" if version == "22.05" else "scontrol-show-nodes--json.json"
    nodes = nodes_of_json(recorded(version, name))
    assert [node.name for node in nodes] == [f"node0{n}" for n in range(1, len(nodes) + 1)]
    assert {node.gpus for node in nodes} == {8}
    assert {node.partitions for node in nodes} == {("main",)}
    assert [sorted(node.states) for node in nodes[2:]] == [["DOWN"], ["DRAIN", "IDLE"]]
    assert [node.reason for node in nodes[2:]] == ["dead", "Action:Replace"]
    assert all(node.states <= {"MIXED", "ALLOCATED"} for node in nodes[:2])
    assert all(node.boot_at > 1.7e9 for node in nodes)


def test_node_text_is_read_with_its_reasons() -> None:
    """State words, whose reason, when; a reason may look like a state and changes nothing."""
    nodes = {node.name: node for node in nodes_of_text(recorded("22.05", "scontrol-show-nodes-o.txt").decode())}
    assert nodes["node01"].states == {"ALLOCATED", "DRAIN", "REBOOT_REQUESTED"}
    assert (nodes["node03"].states, nodes["node03"].reason) == ({"ALLOCATED", "DRAIN"}, "[holdfast] Xid 74")
    assert (nodes["node04"].states, nodes["node04"].reason) == ({"IDLE", "FAIL"}, "Action:Reboot")
    assert (nodes["node05"].states, nodes["node05"].reason) == ({"DOWN"}, "memory swap = ours, State=IDLE")
    assert nodes["node06"].states == {"IDLE", "NOT_RESPONDING"}
    line = "NodeName=n State=DOWN+REBOOT_ISSUED Reason=Action:Reboot : reboot issued [root@2026-11-21T20:35:32]"
    assert nodes_of_text(line)[0].reason == "Action:Reboot"
    assert {node.gpus for node in nodes.values()} == {8}


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("IDLE*", {"IDLE", "NOT_RESPONDING"}),
        ("DOWN*+DRAIN", {"DOWN", "NOT_RESPONDING", "DRAIN"}),
        ("IDLE~", {"IDLE", "POWERED_DOWN"}),
        ("ALLOCATED#", {"ALLOCATED", "POWERING_UP"}),
        ("DOWN^", {"DOWN", "REBOOT_ISSUED"}),
        ("IDLE@", {"IDLE", "REBOOT_REQUESTED"}),
        ("MIXED+MAINTENANCE", {"MIXED", "MAINTENANCE"}),
        ("idle+drain", {"IDLE", "DRAIN"}),
    ],
)
def test_signs_behind_a_state_become_words(state: str, expected: set[str]) -> None:
    """`*`, `~`, `#`, `^`, `@` and the words of newer versions say the same."""
    assert states_of_node(state) == expected


# --- the rest ---


def test_the_configuration_tells_what_recovery_depends_on() -> None:
    """Name, version, times, whether there is accounting and a way to reboot."""
    facts = facts_of_config(recorded("22.05", "scontrol-show-config.txt").decode())
    assert (facts.name, facts.version, facts.accounting) == ("lab", "22.05.8", False)
    assert (facts.min_job_age_s, facts.reboots, facts.slurmd_timeout_s) == (300, True, 6)


@pytest.mark.parametrize(
    ("told", "wanted_s"),
    [
        ("AuthInfo = (null)\nSchedulerParameters = (null)\n", 120),
        ("AuthInfo = socket=/run/munge,cred_expire=5\nSchedulerParameters = bf_continue\n", 5),
        ("AuthInfo = cred_expire=5\nSchedulerParameters = bf_continue,requeue_delay=30\n", 30),
    ],
)
def test_the_delay_of_a_requeue_is_read(told: str, wanted_s: int) -> None:
    """requeue_delay of 25.11 goes before the credential's time."""
    assert facts_of_config(told).requeue_delay_s == wanted_s


def test_an_expedited_requeue_says_why_it_is_held() -> None:
    """As 25.11.7 shows it when the job has failed and no Epilog has."""
    shown = {
        "job_id": 1, "job_state": ["PENDING", "REQUEUE_HOLD"], "state_reason": "JobHeldUser", "restart_cnt": 1,
        "state_description": "job requeued in held state", "priority": {"set": True, "number": 0},
        "flags": ["EXPEDITED_REQUEUE", "USING_DEFAULT_ACCOUNT"],
    }  # fmt: skip
    (job,) = jobs_of_json(json.dumps({"jobs": [shown]}).encode())
    view = job_view(job, JobKey("lab", "1"))
    assert view.state == "held"
    assert "--requeue=expedite: no Epilog failed" in view.reason


def test_accounting_tells_how_forgotten_jobs_ended() -> None:
    """The newest run of each job; steps and noise are passed over."""
    ends = ends_of_sacct(
        "12|FAILED|3:0|2026-11-21T20:00:00\n12|CANCELLED by 1000|0:15|2026-11-21T20:00:05\n12.batch|FAILED|3:0|x\nnoise\n"
    )
    assert list(ends) == ["12"]
    assert (ends["12"].states, ends["12"].exit_code, ends["12"].signal) == ({"CANCELLED"}, 0, 15)


@pytest.mark.parametrize(
    ("version", "account"), [("22.05", "root"), ("23.02", "root"), ("23.11", "root"), ("25.11", "")]
)
def test_a_jobs_account_is_read(version: str, account: str) -> None:
    """It is the job's project, by which a token may be kept to a part of the jobs; no account is no project."""
    jobs = jobs_of_json(recorded(version, "squeue--json--states=all.json"))
    assert jobs
    assert {job.account for job in jobs} == {account}
    views = [job_view(job, JobKey("c", job.id)) for job in jobs]
    assert {view.project for view in views} == {account}
