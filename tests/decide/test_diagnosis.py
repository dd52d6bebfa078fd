"""Attribution: which of many findings is the root, and what is blamed."""

import time
import timeit

import pytest
from msgspec import structs

from holdfast.decide.diagnosis import DiagnosisContext, diagnose
from holdfast.decide.diagnosis_story import tell_unknown
from holdfast.model.cluster import JobKey
from holdfast.model.evidence import Domain, Evidence, EvidenceKind, Finding, Place, Remedy, Role, Severity

_count = iter(range(10**9))


def found(
    rule,
    at,
    *,
    rank=None,
    node="",
    role=Role.ROOT,
    domain=Domain.APPLICATION,
    severity=Severity.ERROR,
    remedy=Remedy.RESTART_IN_PLACE,
    fingerprint="",
    **captures,
):
    return Finding(id=f"f{next(_count)}", rule=rule, at=at, role=role, domain=domain, severity=severity, remedy=remedy,
                   place=Place(node=node, rank=rank, gpu_id=captures.pop("gpu_id", "")), fingerprint=fingerprint or rule, summary=rule, captures=captures)  # fmt: skip


EIGHT = DiagnosisContext(nodes=("n0", "n1"), ranks={"n0": (0, 1, 2, 3), "n1": (4, 5, 6, 7)})


def xid(code, at, node="n1", remedy=Remedy.REPLACE):
    return found(
        f"nvidia.xid.{code}",
        at,
        node=node,
        domain=Domain.HARDWARE,
        severity=Severity.FATAL,
        remedy=remedy,
        gpu_id="0000:b9:00",
    )


def peers(at, but):
    lost = [
        found("gloo.peer", at + 0.01 * r, rank=r, role=Role.CASCADE, domain=Domain.NETWORK)
        for r in range(8)
        if r != but
    ]
    return lost + [found("exit.code.1", at + 0.2, rank=r) for r in range(8) if r != but]


def test_what_the_attempt_ended_by_stays_its_cause():
    """Half an hour later, while the job waits, another part of that node fails: it did not end the attempt."""
    findings = [xid(95, 100.0), found("check.fabric_port_down", 2200.0, node="n1", domain=Domain.NETWORK)]
    ended = DiagnosisContext(nodes=("n0", "n1"), ended_at=101.0)
    assert diagnose(findings, ended).cause == "nvidia.xid.95"


def test_a_look_at_what_an_attempt_died_of_explains_it_whenever_it_comes():
    """A rank dies; minutes later, while the job waits, the agent's look at that attempt finds broken memory. What the
    same machine says then without naming the attempt may have come since, and explains nothing.
    """
    job = JobKey("sim", "101", 1)
    died = structs.replace(found("exit.signal.6", 100.0, rank=0, node="n1"), job=job, attempt=1)
    looked = structs.replace(xid(95, 575.0), job=job, attempt=1)
    ended = DiagnosisContext(job=job, attempt=1, nodes=("n0", "n1"), ended_at=101.0)
    assert diagnose([died, looked], ended).cause == "nvidia.xid.95"
    assert diagnose([died, structs.replace(looked, attempt=None)], ended).cause == "exit.signal.6"


def test_signal_on_one_rank_is_root():
    """A rank that dies of signal 11 is the root; its peers' errors and exits are cascade; its node is named."""
    said = diagnose([*peers(100.1, 5), found("exit.signal.11", 100.0, rank=5, severity=Severity.FATAL)], EIGHT)
    assert (said.cause, said.ranks, said.nodes) == ("exit.signal.11", (5,), ("n1",))
    assert [j.role for j in said.judged if j.rule != "exit.signal.11"] == [Role.CASCADE] * 14
    assert said.confidence >= 0.8
    assert "rank 5" in said.story


@pytest.mark.parametrize(
    "rule",
    ["python.spawned.signal", "slurm.task.segfault", "process.segfault", "process.busfault", "python.fatal.segfault",
     "torch.elastic.failed.segfault", "exit.signal.4", "exit.signal.7", "exit.signal.8", "exit.signal.11"],
)  # fmt: skip
def test_a_death_by_signal_in_anybody_s_words(rule):
    """Whoever tells of a rank's own death by signal, it goes before what other ranks raise after it."""
    death = found(rule, 100.0, rank=5, severity=Severity.FATAL)
    said = diagnose([found("cuda.launch", 102.0, rank=2), death], EIGHT)
    assert (said.cause, said.ranks) == (rule, (5,))


def test_kill_before_peers_exit_codes():
    """kill -9 of one rank goes before exit codes of its peers, even when the exits are seen within the same second."""
    said = diagnose([*peers(100.0, 2), found("exit.signal.9", 100.05, rank=2, domain=Domain.UNKNOWN)], EIGHT)
    assert (said.cause, said.ranks) == ("exit.signal.9", (2,))


def test_unknown_peer_exceptions_do_not_hide_the_dead_rank():
    """Peers' exceptions that the catalogue does not know, but which speak of connections, are consequences."""
    lost = [
        found("python.exception", 99.95, rank=r, type="RuntimeError", message="Connection was closed by peer x")
        for r in (0, 1)
    ]
    said = diagnose([*lost, found("exit.signal.9", 100.0, rank=2, domain=Domain.UNKNOWN)], EIGHT)
    assert said.cause == "exit.signal.9"


def test_hardware_on_a_node_of_the_job_explains():
    """An Xid on a node of the job explains NCCL errors and exits elsewhere, even when its line comes a little later."""
    said = diagnose([*peers(100.0, 9), xid(74, 103.0)], EIGHT)
    assert (said.cause, said.nodes, said.remedy, said.restart_helps) == ("nvidia.xid.74", ("n1",), Remedy.REPLACE, True)
    assert said.gpus == ("n1/0000:b9:00",)


def test_hardware_elsewhere_is_context():
    """An Xid on a node that is not the job's does not explain its failure."""
    said = diagnose(
        [xid(79, 100.0, node="n9"), found("python.exception", 100.5, rank=3, type="KeyError", message="x")], EIGHT
    )
    assert said.cause == "python.exception"
    assert next(j.role for j in said.judged if j.rule == "nvidia.xid.79") == Role.CONTEXT


def test_exception_of_the_rank_explains_its_exit():
    """The exception is the root, the exit code of the same rank is how it ended."""
    said = diagnose(
        [found("exit.code.1", 100.0, rank=3), found("python.exception", 100.4, rank=3, type="KeyError", message="'a'")],
        EIGHT,
    )
    assert said.cause == "python.exception"
    assert next(j.why for j in said.judged if j.rule == "exit.code.1") == "how rank 3 ended, after the root"


def test_fan_out_is_one():
    """The same exception on all ranks is one finding, and no node is blamed for it beyond three."""
    context = DiagnosisContext(nodes=tuple(f"n{i}" for i in range(8)), ranks={f"n{i}": (i,) for i in range(8)})
    said = diagnose(
        [found("python.exception", 100 + r / 100, rank=r, type="ValueError", message="bad") for r in range(8)], context
    )
    assert (said.nodes, said.cause) == ((), "python.exception")
    assert "counts as one" in said.story


def test_timeout_is_charged_one_timeout_back():
    """A port error 600 s before a collective time-out is its root; the same warning at another time is not."""
    timeout = found("nccl.timeout", 700.0, rank=0, domain=Domain.UNKNOWN, timeout_ms="600000")
    port = found("nccl.ib.port", 105.0, rank=4, domain=Domain.NETWORK, severity=Severity.WARNING)
    assert diagnose([timeout, port], EIGHT).cause == "nccl.ib.port"
    late = found("nccl.ib.port", 400.0, rank=4, domain=Domain.NETWORK, severity=Severity.WARNING)
    assert diagnose([timeout, late], EIGHT).cause == "nccl.timeout"


def test_silent_rank_is_suspected():
    """Of a time-out that seven of eight ranks report, the eighth is the suspect; else the one whose number lags."""
    waits = [found("nccl.timeout", 700.0, rank=r, domain=Domain.UNKNOWN, seq="10") for r in range(8) if r != 6]
    said = diagnose(waits, EIGHT)
    assert (said.ranks, said.nodes) == ((6,), ("n1",))
    numbers = [
        found("nccl.timeout", 700.0, rank=r, domain=Domain.UNKNOWN, seq="9" if r == 3 else "10") for r in range(8)
    ]
    assert diagnose(numbers, EIGHT).ranks == (3,)


@pytest.mark.parametrize("rule", ["hang.step", "hang.pause"])
def test_the_rank_that_a_hang_names_is_the_suspect(rule):
    """Also of two: the other one, of which nothing is told, only waits."""
    two = DiagnosisContext(nodes=("n0", "n1"), ranks={"n0": (0,), "n1": (1,)})
    said = diagnose([found(rule, 100.0, node="n1", rank=1, domain=Domain.UNKNOWN)], two)
    assert (said.ranks, said.nodes) == ((1,), ("n1",))


def test_oom_line_after_the_kill():
    """The kernel's or Slurm's word about memory explains a kill that was seen minutes before."""
    said = diagnose(
        [
            found("exit.signal.9", 100.0, rank=1, domain=Domain.UNKNOWN),
            found("oom.slurm", 760.0, severity=Severity.FATAL, remedy=Remedy.STOP),
        ],
        EIGHT,
    )
    assert (said.cause, said.restart_helps) == ("oom.slurm", False)


def test_lost_node_explains_its_ranks():
    """When a node is known to be lost 20 s later, connection errors before it follow from that."""
    said = diagnose(
        [
            *peers(100.0, 9),
            found("node.lost", 120.0, node="n1", domain=Domain.HARDWARE, severity=Severity.FATAL, remedy=Remedy.REBOOT),
        ],
        EIGHT,
    )
    assert (said.cause, said.nodes) == ("node.lost", ("n1",))


def test_survived_errors_are_context():
    """An error after which the job went on for minutes is no root."""
    context = DiagnosisContext(progress_at=1000.0)
    said = diagnose(
        [found("python.exception", 100.0, type="KeyError", message="x"), found("exit.signal.11", 1001.0, rank=0)],
        context,
    )
    assert said.cause == "exit.signal.11"
    assert diagnose([found("python.exception", 100.0)], context).cause == "unknown"


def test_clock_offsets_are_corrected():
    """Two nodes whose clocks differ by 100 s: the corrected order decides."""
    context = DiagnosisContext(nodes=("n0", "n1"), ranks={"n0": (0,), "n1": (1,)}, offsets={"n1": 100.0})
    first = found("exit.signal.11", 150.0, rank=1)
    second = found("exit.signal.7", 90.0, rank=0)
    assert diagnose([second, first], context).cause == "exit.signal.11"


def test_thin_evidence_is_unknown():
    """Only consequences, or nothing: unknown, and the candidates are named."""
    said = diagnose([found("gloo.peer", 1.0, rank=0, role=Role.CASCADE)], EIGHT)
    assert (said.cause, said.confidence) == ("unknown", 0.2)
    assert "gloo.peer" in said.story
    assert diagnose([], EIGHT).cause == "unknown"


def test_it_is_fast():
    """A few findings are judged in well under a millisecond of processor time."""
    some = [*peers(100.1, 5), found("exit.signal.11", 100.0, rank=5)]
    rounds = timeit.repeat(lambda: diagnose(some, EIGHT), number=20, repeat=10, timer=time.thread_time)
    assert min(rounds) / 20 < 0.002


def test_what_comes_later_in_the_same_program_is_no_other_cause():
    """In one program's log a second error that comes later followed from the first; the story says so once."""
    said = diagnose([found("slurm.container", 1.0), found("launching.image", 1.001)], DiagnosisContext())
    assert (said.cause, said.confidence) == ("slurm.container", 0.85)
    assert "1 further finding followed from it (launching.image)" in said.story
    assert "Not explained" not in said.story


def test_a_story_does_not_say_of_one_error_that_it_followed_and_is_not_explained():
    """An error of another rank that the root does not explain is told as such, and not among what followed."""
    said = diagnose([found("torch.cuda.oom", 1.0, rank=1), found("data.missing", 1.2, rank=5)], EIGHT)
    assert "Not explained by it: data.missing." in said.story
    assert "followed" not in said.story


def test_of_lines_that_are_new_three_are_quoted():
    """Lines that the job never printed while it was well; who wants more reads the log."""
    lines = [f"flux capacitor {number} reports brownout" for number in range(5)]
    strange = [Finding(id=text, rule="odd", at=1.0, evidence=(Evidence(EvidenceKind.LOG, text),)) for text in lines]
    assert f'"{lines[0]}"; "{lines[1]}"; "{lines[2]}".' in tell_unknown([], strange)
