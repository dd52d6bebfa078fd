"""The hang detector against simulated jobs: it must not fire while a job keeps its rhythm, and must when it stops."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.detect.rhythm import HangVerdict, Rhythm, StepSample
from holdfast.model.policy import HangRules

LOOK_S = 0.1
RULES = HangRules()


class Job:
    """A job of equal ranks on a clock of its own; `rhythm` is asked every LOOK_S like a launcher does."""

    def __init__(self, ranks=2, rules=RULES, *, start=1000.0, attempt=0):
        self.rhythm = Rhythm(rules, ranks)
        self.now = start
        self.attempt = attempt
        self.ranks = ranks
        self.verdicts: list[tuple[float, HangVerdict]] = []
        self.state = {rank: {"phase": "init", "begun": None, "ended": None, "step_s": None} for rank in range(ranks)}
        self.rhythm.begin_attempt(attempt, start)
        self.tell()

    def tell(self, *ranks, **changes):
        for rank in ranks or tuple(self.state):
            self.state[rank].update(changes)
        for rank, state in self.state.items():
            self.rhythm.feed(rank, StepSample(at=self.now, attempt=self.attempt, **state))

    def wait(self, seconds):
        end = self.now + seconds
        while self.now < end - 1e-9:
            self.now = min(end, self.now + LOOK_S)
            self.tell()
            if verdict := self.rhythm.judge(self.now):
                self.verdicts.append((self.now, verdict))

    def step(self, number, seconds, *ranks):
        phase = "first_step" if self.state[0]["ended"] is None else "train"
        self.tell(*ranks, phase=phase, begun=number)
        self.wait(seconds)
        self.tell(*ranks, phase="train", ended=number, step_s=seconds)

    def run(self, steps, seconds, first=0):
        for number in range(first, first + steps):
            self.step(number, seconds)
        return first + steps

    def restart(self):
        self.attempt += 1
        for state in self.state.values():
            state.update(phase="init", begun=None, ended=None, step_s=None)
        self.rhythm.begin_attempt(self.attempt, self.now)


def trained(seconds=0.5, steps=20, **options):
    job = Job(**options)
    job.wait(2.0)
    job.run(steps, seconds)
    job.wait(0.05)
    assert job.verdicts == []
    return job, steps


def test_stop_inside_a_step_fires_within_three_steps_and_two_seconds():
    """Both ranks enter step 20 and never leave it: told in time, once, as a step hang with the step's number."""
    job, at = trained(0.5)
    job.tell(begun=at)
    fault = job.now
    job.wait(20.0)
    ((when, verdict),) = job.verdicts
    assert when - fault <= 3 * 0.5 + 2.0
    assert (verdict.limit, verdict.rule, verdict.step, verdict.behind) == ("step", "hang.step", 20, ())
    assert verdict.typical_s == pytest.approx(0.5, rel=0.05)
    assert "no progress for" in str(verdict)
    assert "step 20" in str(verdict)


def test_rank_with_fewer_steps_is_behind():
    """Rank 1 stays in step 20 while rank 0 has ended it and waits in step 21."""
    job, at = trained(0.5)
    job.tell(begun=at)
    job.wait(0.5)
    job.tell(0, ended=at, step_s=0.5)
    job.tell(0, begun=at + 1)
    job.wait(10.0)
    ((_, verdict),) = job.verdicts
    assert verdict.behind == (1,)


def test_rank_that_never_begins_the_step_the_others_wait_in_is_behind():
    """A job that announces its phases: rank 1 stands between two steps, rank 0 waits for it inside the next."""
    job, at = trained(0.5)
    job.tell(phase="checkpoint")
    job.wait(1.0)
    job.tell(phase="train")
    job.run(3, 0.5, at)
    job.tell(0, begun=at + 3)
    fault = job.now
    job.wait(10.0)
    ((when, verdict),) = job.verdicts
    assert when - fault <= 3.5
    assert (verdict.behind, verdict.limit) == ((1,), "step")


def test_last_rank_to_enter_the_step_is_behind():
    """All are in the step, but rank 1 entered it seconds after the other two."""
    job, at = trained(0.5, ranks=3)
    job.tell(0, 2, begun=at)
    job.wait(1.2)
    job.tell(1, begun=at)
    job.wait(10.0)
    ((_, verdict),) = job.verdicts
    assert verdict.behind == (1,)


@pytest.mark.parametrize(
    ("phase", "limit"), [("eval", "eval_s"), ("checkpoint", "checkpoint_s"), ("shutdown", "shutdown_s")]
)
def test_announced_phase_has_its_own_limit(phase, limit):
    """Nothing is said before the phase's own limit, and then the phase is named."""
    job, _ = trained(rules=HangRules(eval_s=40.0, checkpoint_s=50.0, shutdown_s=60.0))
    job.tell(phase=phase)
    entered = job.now
    seconds = getattr(HangRules(eval_s=40.0, checkpoint_s=50.0, shutdown_s=60.0), limit)
    job.wait(seconds - 1.0)
    assert job.verdicts == []
    job.wait(3.0)
    ((when, verdict),) = job.verdicts
    assert verdict.limit == phase
    assert seconds <= when - entered <= seconds + 1.0


@pytest.mark.parametrize(("phase", "limit"), [("init", "startup"), ("load", "load"), ("first_step", "first_step")])
def test_each_phase_before_training_has_its_own_limit(phase, limit):
    """A job that stands in start-up, loading or its first step is told by that limit."""
    job = Job(rules=HangRules(startup_s=20.0, load_s=30.0, first_step_s=40.0))
    if phase != "init":
        job.tell(phase=phase, begun=0 if phase == "first_step" else None)
    job.wait({"init": 19.0, "load": 29.0, "first_step": 39.0}[phase])
    assert job.verdicts == []
    job.wait(5.0)
    assert [verdict.limit for _, verdict in job.verdicts] == [limit]


def test_rank_that_never_spoke_is_behind_in_start_up():
    """Three of four ranks have a slot and wait in start-up: the fourth is named."""
    rhythm = Rhythm(HangRules(startup_s=10.0), 4)
    rhythm.begin_attempt(0, 0.0)
    for rank in (0, 1, 3):
        rhythm.feed(rank, StepSample(at=1.0, phase="init"))
    verdicts = [verdict for at in range(1, 20) if (verdict := rhythm.judge(float(at)))]
    assert [verdict.behind for verdict in verdicts] == [(2,)]


def test_first_step_and_compile_pauses_are_let_pass():
    """A first step of five minutes and a second compile pause of two at step 3 are no hang."""
    job = Job()
    job.wait(5.0)
    for number, seconds in enumerate([300.0, 1.0, 1.0, 120.0, 1.0, *[0.5] * 20]):
        job.step(number, seconds)
    assert job.verdicts == []


def test_warm_up_after_a_restart_is_limited_by_what_the_first_attempt_needed():
    """The second attempt's warm-up gets a multiple of the first one's longest, not the policy's quarter of an hour."""
    job = Job()
    for number, seconds in enumerate([4.0, 2.0, *[0.5] * 20]):
        job.step(number, seconds)
    job.restart()
    job.wait(3.0)
    job.step(18, 4.0)
    job.step(19, 2.0)
    assert job.verdicts == []
    job.tell(begun=20)
    stopped = job.now
    job.wait(60.0)
    ((when, verdict),) = job.verdicts
    assert verdict.limit == "first_step"
    assert when - stopped < 15.0


def test_other_ranks_wait_while_rank_zero_saves():
    """Rank 0 announces a checkpoint while the others already wait in the next step: its limit holds for all."""
    job, at = trained(0.5)
    job.tell(0, phase="checkpoint")
    job.tell(1, begun=at)
    job.wait(60.0)
    assert job.verdicts == []


def test_unannounced_evaluation_is_learned():
    """An evaluation of 20 s every 30 steps without any phase mark: never told as a hang, then expected where it comes
    and not elsewhere."""
    job = Job()
    job.wait(1.0)
    number = 0
    for _ in range(4):
        number = job.run(30, 0.3, number)
        job.wait(20.0)
    assert job.verdicts == []
    number = job.run(10, 0.3, number)
    stopped = job.now
    job.wait(30.0)
    ((when, verdict),) = job.verdicts
    assert when - stopped < 5.0
    assert verdict.limit == "step"


def test_unannounced_evaluation_by_rank_zero_alone_is_let_pass():
    """The others wait inside the next step meanwhile."""
    job, at = trained(0.3)
    for _ in range(3):
        job.tell(1, begun=at)
        job.wait(25.0)
        job.tell(0, begun=at)
        job.wait(0.3)
        job.tell(ended=at, step_s=0.3)
        at = job.run(9, 0.3, at + 1)
    assert job.verdicts == []


@pytest.mark.parametrize("phase", ["train", "eval", "checkpoint"])
def test_a_rank_that_is_gone_between_steps_gets_no_time_for_an_evaluation(phase):
    """The others wait inside the next step for a process that has ended; it is named, and so is that it is gone."""
    job, at = trained(0.3, ranks=4)
    job.tell(2, is_gone=True, phase=phase)
    job.tell(0, 1, 3, begun=at)
    stopped = job.now
    job.wait(30.0)
    ((when, verdict),) = job.verdicts
    assert when - stopped < 5.0
    assert (verdict.limit, verdict.behind, verdict.gone) == ("step", (2,), (2,))
    assert str(verdict).endswith("behind: rank 2; process ended without a word: rank 2")


def test_a_rank_that_is_gone_before_its_rhythm_is_known_gets_no_warm_up():
    """All its steps were over at the first look: it is told within half a minute, not after the first step's limit."""
    job = Job(ranks=2)
    job.tell(phase="train", begun=29, ended=29, step_s=0.01)
    job.tell(1, is_gone=True)
    job.tell(0, begun=30)
    stopped = job.now
    job.wait(60.0)
    ((when, verdict),) = job.verdicts
    assert 30.0 <= when - stopped < 32.0
    assert (verdict.limit, verdict.behind, verdict.gone) == ("step", (1,), (1,))


def test_ranks_that_end_after_the_last_step_are_not_missed():
    """Nobody waits for them: one that has ended its work may be gone while another still saves."""
    job, _ = trained(0.3, ranks=4)
    job.tell(1, 2, 3, is_gone=True)
    job.wait(60.0)
    assert job.verdicts == []


def test_standing_still_between_steps_for_good_is_told_at_last():
    """A job that announces nothing is told within `pause_s`, well before NCCL's 600 s."""
    job, _ = trained()
    stopped = job.now
    job.wait(400.0)
    ((when, verdict),) = job.verdicts
    assert verdict.limit == "pause"
    assert when - stopped <= RULES.pause_s + 1.0


def test_evaluation_longer_than_the_limit_gets_twice_the_time_in_the_next_attempt():
    """An unannounced evaluation that was taken for a hang once is let pass when it comes again."""
    rules = HangRules(pause_s=30.0)
    job, at = trained(rules=rules)
    job.wait(45.0)
    assert len(job.verdicts) == 1
    job.restart()
    job.wait(2.0)
    job.run(20, 0.5, at - 10)
    job.wait(45.0)
    job.run(5, 0.5, at + 10)
    assert len(job.verdicts) == 1


def test_after_the_last_step_an_announcing_job_may_still_tidy_up():
    """No rank has gone on to a further step, so 20 s without a word are no hang."""
    job, at = trained()
    job.tell(phase="checkpoint")
    job.wait(1.0)
    job.tell(phase="train")
    job.run(3, 0.5, at)
    job.wait(20.0)
    assert job.verdicts == []


def test_periodic_long_steps_inside_the_step_widen_the_limit():
    """Every tenth step takes 3.4 times as long from the start: that is this job's rhythm."""
    job = Job()
    for number in range(60):
        job.step(number, 3.4 if number % 10 == 9 else 1.0)
    assert job.verdicts == []


def test_a_watcher_that_stood_still_does_not_blame_the_job():
    """The machine was suspended for an hour between two looks: the limits begin anew."""
    job, at = trained()
    job.tell(begun=at)
    job.now += 3600.0
    job.wait(1.0)
    job.tell(ended=at, step_s=0.5)
    job.run(5, 0.5, at + 1)
    assert job.verdicts == []


def test_a_hang_is_still_found_after_the_watcher_stood_still():
    """Suspended in the middle of a hang: told one limit after waking."""
    job, at = trained()
    job.tell(begun=at)
    job.now += 3600.0
    woke = job.now
    job.wait(10.0)
    ((when, _),) = job.verdicts
    assert when - woke < 4.0


def test_slow_job_with_steps_beyond_the_ceiling_is_not_told():
    """Steps of 700 s are this job's rhythm, though the ceiling is 540 s."""
    rhythm = Rhythm(HangRules(), 1)
    rhythm.begin_attempt(0, 0.0)
    at = 0.0
    for number in range(12):
        for _ in range(700):
            at += 1.0
            phase = "train" if number else "first_step"
            rhythm.feed(
                0,
                StepSample(
                    at=at,
                    phase=phase,
                    begun=number,
                    ended=number - 1 if number else None,
                    step_s=700.0 if number else None,
                ),
            )
            assert rhythm.judge(at) is None


def test_dangling_phase_mark_of_the_former_attempt_does_not_count():
    """A slot that still says `eval` from before the restart is read as start-up, and its samples are dropped."""
    rules = HangRules(startup_s=20.0, eval_s=10_000.0)
    job, _ = trained(rules=rules)
    job.wait(20.0)
    mark_at = job.now
    job.tell(phase="eval")
    job.wait(30.0)
    job.verdicts.clear()
    old = job.attempt
    job.attempt += 1
    job.rhythm.begin_attempt(job.attempt, job.now)
    restarted = job.now
    for _ in range(300):
        job.now += LOOK_S
        job.rhythm.feed(0, StepSample(at=job.now, phase="eval", begun=5, ended=5, attempt=old))
        job.rhythm.feed(1, StepSample(at=job.now, phase="eval", phase_at=mark_at, attempt=job.attempt))
        if verdict := job.rhythm.judge(job.now):
            job.verdicts.append((job.now, verdict))
    ((when, verdict),) = job.verdicts
    assert verdict.limit == "startup"
    assert when - restarted <= 21.0


def test_restart_that_stays_silent_is_told_when_the_job_spoke_before():
    """The new attempt's ranks never open a slot: start-up limit, no rank named."""
    job, _ = trained(rules=HangRules(startup_s=15.0))
    job.state.clear()
    job.attempt += 1
    job.rhythm.begin_attempt(job.attempt, job.now)
    job.wait(20.0)
    assert [verdict.limit for _, verdict in job.verdicts] == ["startup"]


def test_job_without_telemetry_and_lines_is_never_told():
    """Silence from the first moment is no hang."""
    rhythm = Rhythm(HangRules(startup_s=10.0), 4)
    rhythm.begin_attempt(0, 0.0)
    for tick in range(1, 4000):
        assert rhythm.judge(tick * 0.5) is None


@pytest.mark.parametrize(("opening", "every"), [(2, 150), (4, 5000)])
def test_script_that_only_tells_checkpoints_is_not_told(opening: int, every: int):
    """Its slot stays in the start-up phase for ever, but its words show that it trains.

    Also when its slot is first seen with a checkpoint in it, and the next one comes long after the limit of a start.
    """
    rhythm = Rhythm(HangRules(startup_s=100.0), 1)
    rhythm.begin_attempt(0, 0.0)
    for tick in range(1, 4000):
        rhythm.feed(0, StepSample(at=tick * 0.5, phase="init", writes=opening + tick // every))
        assert rhythm.judge(tick * 0.5) is None


def test_lines_and_a_rank_that_only_tells_checkpoints_teach_what_a_save_holds_up():
    """Steps by lines, saves by the slot: the long pause of the first save is learned, so that the next attempt may have it."""
    rhythm = Rhythm(HangRules(), 1)
    now = 0.0
    for attempt in (0, 1):
        rhythm.begin_attempt(attempt, now)
        for step in (2, 6, 10, 11):  # lines that are read together count as one
            if step == 11:
                rhythm.feed(0, StepSample(at=now, phase="init", writes=2, attempt=attempt))
                for _ in range(20):
                    now += 0.5
                    assert rhythm.judge(now) is None
                rhythm.feed(0, StepSample(at=now, phase="init", writes=3, attempt=attempt))
            now += 0.05
            rhythm.feed(None, StepSample(at=now, phase="train", ended=step, attempt=attempt))


def test_progress_lines_alone_are_enough():
    """One line every two seconds, with evaluations of 30 s every ten lines; then silence in between: told."""
    rhythm = Rhythm(HangRules(), 8)
    rhythm.begin_attempt(0, 0.0)
    verdicts = []
    now = 0.0

    def wait(seconds):
        nonlocal now
        end = now + seconds
        while now < end:
            now += 0.25
            if verdict := rhythm.judge(now):
                verdicts.append((now, verdict))

    line = 0
    wait(60.0)
    for _ in range(4):
        for _ in range(10):
            line += 10
            rhythm.feed(None, StepSample(at=now, ended=line))
            wait(2.0)
        wait(30.0)
    for _ in range(3):
        line += 10
        rhythm.feed(None, StepSample(at=now, ended=line))
        wait(2.0)
    assert verdicts == []
    stopped = now
    wait(60.0)
    ((when, verdict),) = verdicts
    assert when - stopped < 10.0
    assert verdict.behind == ()


def test_ranks_that_left_are_not_waited_for():
    """Rank 1 ended; rank 0 tidies up for its own limit only."""
    job, at = trained()
    job.tell(0, begun=at)
    job.wait(0.5)
    job.tell(0, ended=at, step_s=0.5, phase="shutdown")
    job.rhythm.leave(1)
    del job.state[1]
    job.wait(30.0)
    assert job.verdicts == []


def test_told_once_and_again_after_new_movement():
    """One verdict per standstill."""
    job, at = trained()
    job.tell(begun=at)
    job.wait(30.0)
    job.tell(ended=at, step_s=30.0)
    at = job.run(10, 0.5, at + 1)
    job.tell(begun=at)
    job.wait(30.0)
    assert len(job.verdicts) == 2


def test_switched_off_rules_never_tell():
    """`enabled = false` in the policy."""
    job = Job(rules=HangRules(enabled=False, startup_s=1.0))
    job.wait(30.0)
    assert job.verdicts == []


@settings(max_examples=60, deadline=None)
@given(
    step_s=st.floats(0.02, 20.0),
    noise=st.lists(st.floats(0.7, 1.6), min_size=40, max_size=40),
    skews=st.lists(st.floats(0.0, 0.3), min_size=40, max_size=40),
    first=st.floats(1.0, 30.0),
)
def test_never_fires_while_steps_keep_their_rhythm(step_s, noise, skews, first):
    """Steps vary by 60 %, ranks are skewed, the first step takes long: silence."""
    job = Job()
    job.wait(1.0)
    job.step(0, first * step_s)
    for number, (factor, skew) in enumerate(zip(noise, skews, strict=True), start=1):
        job.tell(0, begun=number)
        job.wait(skew * step_s)
        job.tell(1, begun=number)
        job.wait(factor * step_s)
        job.tell(1, ended=number, step_s=factor * step_s)
        job.wait(skew * step_s)
        job.tell(0, ended=number, step_s=(factor + 2 * skew) * step_s)
    assert job.verdicts == []


@settings(max_examples=60, deadline=None)
@given(
    step_s=st.floats(0.02, 20.0),
    noise=st.lists(st.floats(0.8, 1.25), min_size=12, max_size=40),
    into=st.floats(0.0, 0.99),
    culprit=st.integers(0, 1),
)
def test_always_fires_within_the_bound(step_s, noise, into, culprit):
    """A fault at any moment inside a step is told within three (longest shown) steps plus two seconds."""
    job = Job()
    job.wait(1.0)
    for number, factor in enumerate(noise):
        job.step(number, factor * step_s)
    job.tell(begun=len(noise))
    job.wait(into * step_s)
    fault = job.now
    if culprit:
        job.tell(0, ended=len(noise), step_s=step_s)
        job.tell(0, begun=len(noise) + 1)
    longest = max(noise) * step_s
    job.wait(3 * longest + 2.0)
    assert [when - fault <= 3 * longest + 2.0 for when, _ in job.verdicts] == [True]
    assert job.verdicts[0][1].behind in ((1,), ()) if culprit else True


def test_told_once_though_other_ranks_go_on():
    """Rank 1 stands, rank 0 does not wait for it: one verdict, not one per step of rank 0."""
    job, at = trained()
    job.tell(1, begun=at)
    for number in range(at, at + 40):
        job.tell(0, begun=number)
        job.wait(0.5)
        job.tell(0, ended=number, step_s=0.5)
    ((_, verdict),) = job.verdicts
    assert verdict.behind == (1,)


def test_ranks_that_cannot_be_seen_are_not_judged():
    """The node of rank 1 is silent: nothing is known of it. Seen again and still standing, it gets its whole limit."""
    job, at = trained()
    job.tell(begun=at)
    for _ in range(300):
        job.now += LOOK_S
        assert job.rhythm.judge(job.now, unseen=[1]) is None
    seen_again = job.now
    job.wait(10.0)
    ((when, _),) = job.verdicts
    assert 2.0 <= when - seen_again <= 3.5


def test_a_cut_node_is_no_hang():
    """Cut off, nothing more is heard of its ranks: before it counts as silent, the standstill is no hang of theirs.

    The same standstill with a node that goes on speaking is told at its limit.
    """
    job, at = trained()
    job.tell(begun=at)
    cut_at = job.now
    for _ in range(100):
        job.now += LOOK_S
        assert job.rhythm.judge(job.now, unheard_s=job.now - cut_at + 0.05) is None
    assert job.rhythm.judge(job.now, unheard_s=0.3) is not None
