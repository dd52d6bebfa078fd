"""Has the job stopped moving? Learns a job's own rhythm from its steps and says which limit was passed, and by whom.

Called by the launcher (samples from telemetry slots, a few times a second) and by the controller's detectors (progress
lines only). Pure: every time is a field of a sample or the argument of `judge`, in seconds of one monotonic clock, so
that a clock that is set or jumps cannot look like a hang.

How it judges. Ranks of one job wait for each other, so the ranks with the least progress (the laggards) decide: the
others only wait for them. A laggard inside a step has the step limit; one in a phase it announced has that phase's
own limit; one between two steps may be evaluating or saving without saying so, which only counts as a hang soon when
this job is known to announce such phases. The step limit is `multiple` x the median step plus the floor, at most the
ceiling, and never below one and a half times what the job has shown to be its rhythm twice lately. A fault inside a
step is thus told at most 3 steps + 1 s after it (HangRules' defaults), to which the caller adds its looking interval.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from statistics import median

from msgspec import Struct

from holdfast.model.policy import HangRules

JOB = -1
"""Stands for the rank in what was read from progress lines, which speak for the whole job."""

_WINDOW = 64
_RHYTHM_FACTOR = 1.5
_BLIND_GAP_S = 2.0
"""When nobody asked for this long, it was the watcher that stood still (a stopped process, a paused machine)."""
_OPENING_WRITES = 2
"""What a slot has written when it is new: whoever has written more has spoken."""
_LONG_PAUSES = 8
_LATE_S_MIN = 0.5
_UNANNOUNCED_S = 30.0
"""What a job that announces its phases may still do between steps without a word, as after its last step."""

_PHASE_LIMITS = {
    "init": ("startup", "startup_s"),
    "load": ("load", "load_s"),
    "first_step": ("first_step", "first_step_s"),
    "eval": ("eval", "eval_s"),
    "checkpoint": ("checkpoint", "checkpoint_s"),
    "shutdown": ("shutdown", "shutdown_s"),
}
_ANNOUNCED = frozenset({"eval", "checkpoint"})


class StepSample(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of one rank (or, from progress lines, of the job) at one moment."""

    at: float
    """Monotonic seconds, the clock that `judge` is asked with: when this was so."""
    phase: str = "train"
    """One of telemetry's phases; progress lines have `train`."""
    begun: int | None = None
    """Newest step that has begun; None: none, or not told (progress lines)."""
    ended: int | None = None
    """Newest completed step."""
    step_s: float | None = None
    """Seconds that the newest completed step took."""
    phase_at: float = 0.0
    """When the phase began, same clock; 0: not known."""
    attempt: int = 0
    writes: int = 0
    """Grows with every word of the rank; 0: not known."""
    is_gone: bool = False
    """The rank's process has ended, and nobody has said how."""


class HangVerdict(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The job stands still: which limit was passed, for how long nothing moved, and who is behind."""

    limit: str
    """`startup`, `load`, `first_step`, `step`, `pause` (between steps), `eval`, `checkpoint` or `shutdown`."""
    limit_s: float
    stuck_s: float
    since: float
    """When the ranks that the others wait for last moved."""
    behind: tuple[int, ...] = ()
    """Ranks with fewer steps than the others, else ranks that entered the step clearly last; empty: all alike."""
    step: int | None = None
    """The step in which, or after which, it stands."""
    typical_s: float | None = None
    """Median of the last steps; None: not learned yet."""
    gone: tuple[int, ...] = ()
    """Those of `behind` whose processes have ended without a word."""

    @property
    def rule(self) -> str:
        """The finding's rule id, such as `hang.step`."""
        return f"hang.{self.limit}"

    def __str__(self) -> str:
        where = f"in step {self.step}" if self.limit == "step" else f"in {self.limit.replace('_', ' ')}"
        rhythm = f"; a step usually takes {self.typical_s:.2f} s" if self.typical_s is not None else ""
        who = ""
        if self.behind:
            who = f"; behind: rank{'s' if len(self.behind) > 1 else ''} {', '.join(map(str, self.behind))}"
        if self.gone:
            who += f"; process ended without a word: rank {', '.join(map(str, self.gone))}"
        return f"no progress for {self.stuck_s:.1f} s {where} (limit {self.limit_s:.1f} s{rhythm}){who}"


class _Rank(Struct):
    """What is remembered of one rank in this attempt."""

    phase: str
    begun: int | None
    ended: int | None
    writes: int
    moved_at: float
    ended_at: float
    is_clean: bool = False
    """Since the newest completed step, no announced phase has come between."""
    tells_no_steps: bool = False
    is_gone: bool = False

    @property
    def progress(self) -> tuple[int, int]:
        ended = -1 if self.ended is None else self.ended
        return ended, ended if self.begun is None else self.begun

    @property
    def is_in_step(self) -> bool:
        return self.begun is not None and self.begun != self.ended


class Rhythm:
    """The hang detector of one job. Keeps what it learned over attempts; forgets ranks and phases with each one."""

    def __init__(self, rules: HangRules, ranks: int) -> None:
        self._rules = rules
        self._size = ranks
        self._attempt = 0
        self._attempt_at: float | None = None
        self._ranks: dict[int, _Rank] = {}
        self._gone: set[int] = set()
        self._front = -1
        self._steps: deque[float] = deque(maxlen=_WINDOW)
        self._pauses: deque[float] = deque(maxlen=_WINDOW)
        self._long: deque[tuple[int, float]] = deque(maxlen=_LONG_PAUSES)
        self._warm_up_s = 0.0
        self._warm_up_s_before = 0.0
        self._learned = 0
        self._announces = False
        self._pause_factor = 1.0
        self._fired_at: float | None = None
        """When the ranks that were told to be behind had last moved."""
        self._told_before = ""
        self._asked_at: float | None = None
        self._watching_since = float("-inf")

    @property
    def typical_s(self) -> float | None:
        """Median seconds of the last steps; None before any was seen."""
        return median(self._steps) if self._steps else None

    @property
    def step_limit_s(self) -> float:
        """The limit that a step has now, from what was learned so far."""
        return self._step_limit(self._steps)

    def begin_attempt(self, attempt: int, at: float, *, ranks: int | None = None) -> None:
        """Forget the ranks of the attempt before; what was learned about the job stays."""
        if ranks is not None:
            self._size = ranks
        if self._ranks:
            self._told_before = "lines" if set(self._ranks) == {JOB} else "telemetry"
        self._attempt = attempt
        self._attempt_at = at
        self._ranks.clear()
        self._gone.clear()
        self._front = -1
        self._warm_up_s_before = max(self._warm_up_s, self._warm_up_s_before)
        self._warm_up_s = 0.0
        self._learned = 0
        self._fired_at = None

    def leave(self, rank: int) -> None:
        """This rank has ended; nobody waits for it."""
        self._gone.add(rank)
        self._ranks.pop(rank, None)

    def feed(self, rank: int | None, sample: StepSample) -> None:
        """Take in one sample; `rank` is None for progress lines. Samples of former attempts change nothing."""
        if sample.attempt < self._attempt:
            return
        if sample.attempt > self._attempt:
            self.begin_attempt(sample.attempt, sample.at)
        if self._attempt_at is None:
            self._attempt_at = sample.at
        key = JOB if rank is None else rank
        if key in self._gone or (key == JOB and self._has_telemetry()):
            return
        phase = self._phase(sample)
        self._announces = self._announces or phase in _ANNOUNCED
        known = self._ranks.get(key)
        if known is None:
            # A slot that the first save opens tells no steps; lines that told some go on speaking for the job.
            says_none = sample.begun is None and sample.ended is None and phase == "init"
            said_else = says_none and (sample.writes > _OPENING_WRITES or JOB in self._ranks)
            self._ranks[key] = _Rank(
                phase, sample.begun, sample.ended, sample.writes, sample.at, sample.at, tells_no_steps=said_else
            )
            self._front = max(self._front, -1 if sample.ended is None else sample.ended)
        else:
            self._move(key, known, sample, phase)
        if key != JOB and not self._ranks[key].tells_no_steps:
            self._ranks.pop(JOB, None)

    def judge(self, now: float, unseen: Collection[int] = (), *, unheard_s: float = 0.0) -> HangVerdict | None:
        """Does the job hang? Answers once per standstill: then None until the ranks that are behind have moved.

        Args:
            now: monotonic seconds.
            unseen: ranks that cannot be seen now (their node is silent): nothing is known of them, so that neither
                they nor those that may wait for them are judged.
            unheard_s: how long ago the node that was heard the longest ago spoke. Where that is more than half of the
                standstill, its network may be what stands still: the verdict waits until it has spoken or is silent.
        """
        if self._asked_at is not None and now - self._asked_at > _BLIND_GAP_S:
            self._watching_since = now
        self._asked_at = now
        if unseen:
            self._watching_since = now
        if not self._rules.enabled or unseen:
            return None
        verdict = self._judge_ranks(now, unheard_s) if self._ranks else self._judge_silence(now)
        if verdict is not None and verdict.limit == "pause":
            # Should it have been an unannounced evaluation after all, the next attempt must get past it.
            self._pause_factor *= 2.0
        return verdict

    # --- taking in ---

    def _has_telemetry(self) -> bool:
        return any(key != JOB and not rank.tells_no_steps for key, rank in self._ranks.items())

    def _phase(self, sample: StepSample) -> str:
        """The sample's phase, unless the mark is older than the attempt: that one was left by a crash."""
        if sample.phase_at and self._attempt_at is not None and sample.phase_at < self._attempt_at - _BLIND_GAP_S:
            is_moving = sample.begun is not None or sample.ended is not None
            return "train" if is_moving else "init"
        return sample.phase

    def _move(self, key: int, known: _Rank, sample: StepSample, phase: str) -> None:
        moved = (phase, sample.begun, sample.ended) != (known.phase, known.begun, known.ended)
        known.is_gone = sample.is_gone
        if not moved:
            if sample.writes != known.writes and sample.begun is None and sample.ended is None:
                # It speaks (a loss, a checkpoint) but never of steps or phases: its start-up cannot be timed.
                known.tells_no_steps = True
            known.writes = sample.writes
            return
        known.tells_no_steps = False
        at = max(sample.at, known.moved_at)
        if sample.ended is not None and sample.ended != known.ended:
            self._learn(key, known, sample, at)
            known.ended_at = at
            known.is_clean = True
        if phase in _ANNOUNCED or known.phase in _ANNOUNCED:
            known.is_clean = False
        known.phase, known.begun, known.ended, known.writes = phase, sample.begun, sample.ended, sample.writes
        known.moved_at = at

    def _learn(self, key: int, known: _Rank, sample: StepSample, at: float) -> None:
        """One duration per step of the job: from the first rank that reports it."""
        ended = sample.ended if sample.ended is not None else -1
        if ended <= self._front:
            return
        # A line may stand for ten steps; its own rhythm is from line to line. A slot is looked at now and then.
        passed = 1 if key == JOB or known.ended is None else max(1, ended - known.ended)
        self._front = ended
        cycle = (at - known.ended_at) / passed if known.is_clean and known.ended is not None else None
        took = sample.step_s if sample.step_s is not None else cycle
        self._learned += passed
        if took is None:
            return
        if self._learned <= self._rules.learn_steps:
            self._warm_up_s = max(self._warm_up_s, took, cycle or 0.0)
            if self._learned == 1:
                return
        pause = max(0.0, cycle - took) if sample.step_s is not None and cycle is not None and passed == 1 else 0.0
        gap = pause if sample.step_s is not None else took
        if gap > self.step_limit_s and known.ended is not None:
            self._long.append((known.ended, gap))
            if key == JOB:
                return
        else:
            self._pauses.append(pause)
        self._steps.append(took)

    # --- judging ---

    def _judge_ranks(self, now: float, unheard_s: float) -> HangVerdict | None:
        watched = {key: rank for key, rank in self._ranks.items() if not rank.tells_no_steps}
        if not watched:
            return None
        least = min(rank.progress for rank in watched.values())
        laggards = {key: rank for key, rank in watched.items() if rank.progress == least}
        most = max(rank.progress for rank in watched.values())
        limits = [self._limit(rank, is_waited_for=rank.progress < most) for rank in laggards.values()]
        name, limit_s = max(limits, key=lambda limit: limit[1])
        moved_at = max(rank.moved_at for rank in laggards.values())
        since = max(self._watching_since, moved_at)
        stuck_s = now - since
        if stuck_s <= limit_s or stuck_s < 2.0 * unheard_s or self._fired_at == moved_at:
            return None
        self._fired_at = moved_at
        sample = next(iter(laggards.values()))
        behind = self._behind(watched, laggards)
        return HangVerdict(
            limit=name,
            limit_s=limit_s,
            stuck_s=stuck_s,
            since=since,
            behind=behind,
            step=sample.begun if sample.is_in_step else sample.ended,
            typical_s=self.typical_s,
            gone=tuple(key for key in behind if key in watched and watched[key].is_gone),
        )

    def _judge_silence(self, now: float) -> HangVerdict | None:
        """No rank has spoken in this attempt, but the job is known to speak."""
        if not self._told_before or self._attempt_at is None or self._gone:
            return None
        rules = self._rules
        limit_s = rules.startup_s
        if self._told_before == "lines":
            limit_s += rules.load_s + rules.first_step_s
        since = max(self._attempt_at, self._watching_since)
        if now - since <= limit_s or self._fired_at == self._attempt_at:
            return None
        self._fired_at = self._attempt_at
        return HangVerdict(limit="startup", limit_s=limit_s, stuck_s=now - since, since=since, typical_s=self.typical_s)

    def _behind(self, watched: dict[int, _Rank], laggards: dict[int, _Rank]) -> tuple[int, ...]:
        if JOB in watched:
            return ()
        has_begun_none = all(rank.progress == (-1, -1) for rank in watched.values())
        unseen = set(range(self._size)) - set(watched) - self._gone if has_begun_none else set()
        if unseen:
            return tuple(sorted(unseen))
        if len(laggards) < len(watched):
            return tuple(sorted(laggards))
        times = sorted(rank.moved_at for rank in laggards.values())
        late_s = max(_LATE_S_MIN, self.typical_s or 0.0)
        middle = times[(len(times) - 1) // 2]
        return tuple(sorted(key for key, rank in laggards.items() if rank.moved_at - middle > late_s))

    def _limit(self, rank: _Rank, *, is_waited_for: bool) -> tuple[str, float]:
        rules = self._rules
        if rank.is_gone and is_waited_for:
            # It does nothing between steps any more, whatever it was about to do, and needs no warm-up.
            return "step", self.step_limit_s if self._steps else min(self.step_limit_s, _UNANNOUNCED_S)
        if rank.phase != "train":
            # A phase that a newer telemetry may know gets the longest limit.
            name, field = _PHASE_LIMITS.get(rank.phase, _PHASE_LIMITS["eval"])
            return name, float(getattr(rules, field))
        if rank.begun is None and rank.ended is None:
            return "startup", rules.startup_s
        if self._learned < rules.learn_steps:
            limit_s = self._warm_up_limit()
            if self._warm_up_s_before and not rank.is_in_step:
                # An unannounced save may come in the first steps, too.
                limit_s = max(limit_s, self._pause_limit(rank, is_waited_for=is_waited_for)[1])
            return "first_step", limit_s
        if rank.is_in_step:
            return "step", self.step_limit_s
        return self._pause_limit(rank, is_waited_for=is_waited_for)

    def _warm_up_limit(self) -> float:
        """Compilers and caches work in the first steps; an attempt before this one has shown how long."""
        rules = self._rules
        if not self._warm_up_s_before:
            return rules.first_step_s
        return min(rules.first_step_s, max(self.step_limit_s, rules.multiple * self._warm_up_s_before + rules.floor_s))

    def _step_limit(self, steps: Iterable[float]) -> float:
        rules = self._rules
        known = sorted(steps)
        if not known:
            return rules.first_step_s
        # The second largest: one hiccup teaches nothing, a long step that comes back does.
        shown = known[-2] if len(known) > 1 else known[-1]
        learned = min(rules.multiple * median(known) + rules.floor_s, rules.step_max_s)
        return max(learned, _RHYTHM_FACTOR * shown)

    def _pause_limit(self, rank: _Rank, *, is_waited_for: bool) -> tuple[str, float]:
        """The limit between two steps, where an evaluation or a save may run unannounced."""
        rules = self._rules
        known = sorted(self._pauses)
        usual = _RHYTHM_FACTOR * known[-2] if len(known) > 1 else 0.0
        soon = max(self.step_limit_s, usual)
        if self._announces:
            return ("step", soon) if is_waited_for else ("pause", max(soon, min(_UNANNOUNCED_S, rules.pause_s)))
        longest = max((seconds for _, seconds in self._long), default=0.0)
        patient = min(max(soon, rules.multiple * longest + rules.floor_s), rules.eval_s)
        period = self._period()
        if period is None:
            return "pause", max(patient, min(rules.pause_s * self._pause_factor, rules.eval_s))
        last = self._long[-1][0]
        is_due = rank.ended is not None and (rank.ended - last) % period == 0
        return ("pause", patient) if is_due else ("step", soon)

    def _period(self) -> int | None:
        """Every how many steps a long pause comes, once two equal distances have shown it."""
        if len(self._long) < 3:
            return None
        first, second, third = (step for step, _ in list(self._long)[-3:])
        return third - second if third - second == second - first and third > second else None
