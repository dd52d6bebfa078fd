"""Swarms: a fixed set of seeds has nothing to complain of; what fails is made small and can be told in one command."""

from __future__ import annotations

import shlex

import pytest

from holdfast.decide import ladder
from holdfast.errors import UsageError
from holdfast.model.orders import OrderStatus
from holdfast.model.policy import Mode
from holdfast.sim import fuzz as fuzzing
from holdfast.sim.faults import plan
from holdfast.sim.fuzz import CAN_BE_OFF, Trial, examine, search, shrunk
from holdfast.sim.options import EDITION_2, EDITION_3, EDITION_4, draw
from sim.mutants import planted
from sim.reach import missing, rows, run

REGRESSIONS = {
    5: "a job was requeued beyond its budget because it stood in the queue already",
    8: "an exclusion outlived its node's repair, and the job waited for nodes for ever",
    13: "a node that failed while the exclusion of others was under way was given to the job",
    15: "a node that the brake held back was given to a job that had not been on it",
    26: "a node that its admin took back stayed suspect in service",
    53: "attempts of starts that had failed early hid the launcher's own, and a job that trained was given up",
    109: "a job that was started and failed between two looks was waited for for ever",
    204: "a dead node that a person vouched for was never looked at again",
    216: "a crash was ignored because a straggler had been told of, and that matter was closed",
    283: "a late word of a job whose id was used again left a ghost on its nodes",
    310: "our own requeue, seen late, revived a job that was being given up, and its end was withdrawn",
    324: "an order was asked for again while its failure was being stored, and dropped",
    1152: "a launcher that was heard while its job was being given up revived the job, with fresh budgets",
    1305: "a checkpoint that was told of when the next requeue had been ordered did not give the retries back",
    2338: "the brake went on holding back a node that a person had taken back into service",
    5068: "a dead node that its admin took back into service was never looked at again",
    5093: "a job was released onto nodes that had failed while its release was delayed",
    7160: "a late word of a launcher whose run had ended revived a job that was given up",
    8064: "a job was preempted, started and lost while our requeue hung, and was released although in no queue",
    5242: "a requeue that a person asked for ended in giving up",
    1165: "a requeue that was taken back took effect later, and nobody released the job",
    2277: "a node was rebooted that a person had drained while our own drain was under way",
    2748: "a silence that was stored after it had ended lasted for ever",
    3479: "a crash heard of before the start of its attempt was charged as if it had been answered already",
    936: "a restart in place that was told of after our requeue was done left the job held, and nobody released it",
    4878: "a release that had worked was tried again and undid a person's hold",
    4402: "half of a rack stayed away for ever, and was waited for as long",
    6647: "a rank that died before its attempt was said to have started was never missed",
    7721: "a launcher that had been cut off told of a loss half an hour old, and the node, heard since, was lost anew",
    7732: "a dead node that a person took over and put back into service was never looked at again",
    8867: "a requeue that a person asked for was charged: the judge looked at its incident only",
    8159: "a node that booted behind a rack that was cut off counted as well, and a job could start there",
    10183: "a requeue that the scheduler had overtaken was taken for done while the job ran, and it was waited for for ever",
    10568: "releases that came to no attempt raised the job's epoch, and what it saved gave its retries back no more",
    11268: "an older fault of the same machine, told of late, was called a wrong diagnosis: the judge looked at nearness",
    12053: "a node that died between its checks and its return was returned dead, and never looked at again",
    12190: "a job of which only its launcher had told outlived its id, and a node waited for it to drain",
    8308: "a crash that came back after a preemption was called given up too early: the judge missed a restart",
    30058: "a node that came back to the cluster drained by us, whose agent spoke first, stayed drained for ever",
    12951: "a retry drained a node anew that a person had taken back before the order's outcome was told",
    32133: "an end that was proposed outlived the requeue that a person approved, which was ordered anew each minute",
    32176: "a trouble that was left alone while a person held the job left nothing to end the proof of what ran",
    179113866: "a launcher's word of a start after a cancel counted for nothing: the judge believed the scheduler only",
    179113975: "an order that lifted exclusions was taken back when a person let the job go, and it waited for ever",
    179114087: "what an attempt had saved whose start was never told of gave its retries not back",
    184706828: "a proposal that the brake overtook left a node suspect for ever, as a return of it was still under way",
    184706939: "a node that the scheduler did not know was called given out: the judge missed that it could not exclude it",
    184707144: "a retry retired a node that a person had returned while nobody could see it",
    184707409: "a quarantine that worked and said that it had failed was in nobody's care once its node was well",
    184708129: "a drain of ours was found where policy observes, and nobody was told of it",
    184708367: "an Xid from after a link's recovery was called stale, since both were heard of late and at once",
    184708446: "a rank's death that a bad GPU had explained made each later death the same trouble",
    184708928: "a start that a person's hold had not kept back ended the hold",
    184709071: "a hold in the queue outlasted the start that ended it, as the launcher told of it first",
    184710285: "a node that came back to the cluster suspect and drained by us stayed drained when its fault was gone",
    390001138: "a late escalation of a run that had been cancelled requeued what its owner had queued since",
    184709639: "a person's hold of what was queued already was charged as a requeue",
    184709922: "an end that a person had approved was forgotten when the controller was killed before it was done",
    184710253: "a node that was lost before its job's first attempt was said to have started was never left",
    195000072: "a quarantine that took effect after a person had vouched for the node was in nobody's care",
    195001863: "a run was called at rest before the scheduler could be read again",
    195002185: "a release that was seen before its hold was tried again and undid a person's hold",
    195003137: "a part that failed while the job waited was called what had ended its attempt before",
    195003572: "a requeue that came to nothing was taken for the one by which a job that was given up ran again",
    179112986: "a drain of ours was left where a person had set the mode to observe, and nobody was told of it",
    179113285: "a quarantine that hung drained a node that a person had returned meanwhile, after its failed check",
    179113647: "a person returned a node that the scheduler did not know",
    390000259: "a hold that may have been ours was called a person's: the judge knew more than any scheduler tells",
    157128491: "an agent's look at what an attempt died of came minutes after its end, and a signal was named as the cause",
    63493: "an order that was seen done, but not stored yet, was tried again and undid what a person did since",
}
"""Seeds that found a bug, and which. The bugs have tests of their own where they were."""
TWO_JOURNALS = {
    7500: "what a lost lease cut off was begun again in the order of a set of tasks, which is that of their addresses",
}
"""Seeds that gave two journals in two runs."""


@pytest.mark.parametrize("seed", sorted(TWO_JOURNALS))
def test_a_seed_that_gave_two_journals_gives_one(seed):
    """See TWO_JOURNALS."""
    assert examine(Trial(seed=seed), twice=True).complaints == ()


@pytest.mark.parametrize("seed", sorted(REGRESSIONS))
def test_a_bug_that_was_found_stays_mended(seed):
    """See REGRESSIONS."""
    assert examine(Trial(seed=seed)).complaints == ()


def test_a_fixed_swarm_finds_nothing():
    """Ten seeds with the engine's own invariants checked after every event; one of them run twice, byte by byte."""
    verdicts = []
    assert search(range(95, 105), on_verdict=verdicts.append) == []
    assert [verdict.trial.seed for verdict in verdicts] == list(range(95, 105))
    assert sum(verdict.incidents for verdict in verdicts) > 20
    assert any(verdict.twice for verdict in verdicts)


def test_a_fixed_swarm_of_the_second_edition_finds_nothing():
    """With clocks that run fast or slow, links that are down, and peers that complain."""
    assert search(range(EDITION_2, EDITION_2 + 6)) == []


FOURTH = range(EDITION_4, EDITION_4 + 40)


def test_a_fixed_swarm_of_the_fourth_edition_finds_nothing_and_reaches_nearly_everything():
    """With people who ask and decide, holds that last, checks by agents: few rows of the table are left out."""
    verdicts, reached = run(FOURTH)
    assert [verdict.trial.command() for verdict in verdicts if not verdict.ok] == []
    lines = rows()
    assert sum(reached[row] > 0 for row in lines) >= 195
    assert [row for row in missing(reached) if row[0] in {"event", "job", "node"}] == []
    assert reached["event", "node_validated failed"] >= 10
    assert reached["job", "held"] >= 100


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_every_row_that_can_be_reached_is_reached():
    """By 700 seeds; what they do not reach has its reason in `reach.NEVER`."""
    _, reached = run([*range(EDITION_3, EDITION_3 + 100), *range(EDITION_4, EDITION_4 + 600)])
    assert missing(reached) == []


def test_a_swarm_under_observe_changes_nothing():
    """Every order that would have been given is recorded, and the world goes on without us: the judge sees both."""
    seeds = [seed for seed in range(EDITION_3, EDITION_3 + 12) if draw(seed).policy][:4]
    assert search(seeds) == []
    result = fuzzing.simulate(draw(seeds[0]))
    assert any(record.status is OrderStatus.OBSERVED for record in result.orders)
    assert any(incident.would and incident.diagnosis for incident in result.incidents)


def test_the_judge_of_observe_sees_an_order_that_is_given(monkeypatch):
    """With a planted bug: the modes are not asked."""
    seed = next(seed for seed in range(EDITION_3, EDITION_3 + 12) if draw(seed).policy)
    monkeypatch.setattr(ladder, "mode_of", lambda *_: Mode.ACT)
    assert "observe_touches_nothing" in examine(Trial(seed=seed)).judges


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("first", [2000, EDITION_2, EDITION_3])
def test_a_long_swarm_finds_nothing(first):
    """A thousand seeds of each edition, over two processes."""
    failed = search(range(first, first + 1000), processes=2)
    assert [(one.trial.command(), one.complaints) for one in failed] == []


def test_a_failing_seed_is_made_small_and_told_in_one_command():
    """With a planted bug: few faults are left, the judge is the same, and the command's words give the same verdict."""
    with planted("restart onto a bad node"):
        verdict = examine(Trial(seed=16))
        assert verdict.judges == {"not_onto_a_bad_node"}
        small = shrunk(verdict, tries=24)
        assert small.judges & verdict.judges
        assert len(small.faults) < len(verdict.faults) / 2
        words = shlex.split(small.trial.command())
        assert words[:3] == ["holdfast", "simulate", "fuzz"]
        named = dict(zip(words[3::2], words[4::2], strict=True))
        again = Trial(
            seed=int(named["--from"]),
            only=tuple(name for name in named["--only"].split(",") if name),
            off=tuple(named.get("--off", "").split(",")) if "--off" in named else (),
        )
        assert again == small.trial
        assert examine(again).complaints == small.complaints


def test_two_processes_say_the_same_as_one():
    """Verdicts depend on nothing but the trials."""
    seeds = range(100, 109)
    alone, beside = [], []
    search(seeds, on_verdict=alone.append)
    search(seeds, processes=2, on_verdict=beside.append)
    assert alone == beside


def test_an_error_inside_a_run_is_a_complaint(monkeypatch):
    """The search goes on; the place is named."""

    def broken(*_given, **_named):
        raise RuntimeError("loose wire")

    monkeypatch.setattr(fuzzing, "simulate", broken)
    (complaint,) = examine(Trial(seed=1)).complaints
    assert complaint.judge == "run_does_not_break"
    assert "loose wire" in complaint.text
    assert "test_fuzz.py" in complaint.text


def test_a_run_that_never_ends_is_a_complaint(monkeypatch):
    """It is broken off by an alarm."""

    def for_ever(*_given, **_named):
        while True:
            pass

    monkeypatch.setattr(fuzzing, "simulate", for_ever)
    monkeypatch.setattr(fuzzing, "RUN_LIMIT_S", 0.05)
    assert examine(Trial(seed=1)).judges == {"run_ends"}


def test_two_runs_of_one_seed_that_differ_are_a_complaint(monkeypatch):
    """As a set's order or a clock would make them."""
    real = fuzzing.simulate
    seeds = iter((3, 4))
    monkeypatch.setattr(fuzzing, "simulate", lambda _options, **_named: real(draw(next(seeds))))
    assert "same_seed_same_bytes" in examine(Trial(seed=3), twice=True).judges


def test_a_trial_leaves_out_what_it_says():
    """Faults by their ids, options by their names; what does not exist is named."""
    trial = Trial(seed=2, only=(), off=CAN_BE_OFF)
    options = trial.options()
    assert set(options.drop) == {fault.id for fault in plan(draw(2))}
    assert not any(getattr(options, name) for name in CAN_BE_OFF)
    assert examine(trial).faults == ()
    with pytest.raises(UsageError, match="no fault 'ghost-1'"):
        Trial(seed=2, only=("ghost-1",)).options()
    with pytest.raises(UsageError, match="'nodes' cannot be switched off"):
        Trial(seed=2, off=("nodes",)).options()
