"""What-if questions: one large job, failures at published rates, several policies, intervals and numbers of spares.

`holdfast simulate` asks; each case runs under the same planned faults, seed by seed, so that only what differs between
cases can make a difference. Durations are virtual seconds. Every run is the real controller and engine.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from statistics import fmean, stdev

from msgspec import Struct, field

from holdfast.errors import UsageError
from holdfast.sim.causes import best_interval_s, formula_ettr
from holdfast.sim.faults import power
from holdfast.sim.ledger import CATEGORIES
from holdfast.sim.options import DAY_S, GPUS_PER_NODE, SCALE_FROM, JobPlan, SimOptions
from holdfast.sim.record import SimResult
from holdfast.sim.run import Progress, simulate

COMMAND_S = 0.3
"""A scheduler's command; three of them bring a job through the queue in about a second, as measured on Slurm."""


class Question(Struct, frozen=True, kw_only=True):
    """What all cases share."""

    gpus: int
    days: float
    jobs: int = 1
    """So many jobs of equal size share the GPUs."""
    failures: float
    """Per 1000 node-days."""
    causes: str = "llama3"
    save_s: float = 60.0
    start_s: float = 60.0
    load_s: float = 120.0
    lemons: float = 0.0
    scale_exponent: float = 0.0
    in_place_s: float = 5.0

    @property
    def nodes(self) -> int:
        """Nodes that the jobs use, without spares."""
        return self.gpus // GPUS_PER_NODE

    @property
    def job_nodes(self) -> int:
        """Nodes of one job."""
        return self.nodes // self.jobs

    @property
    def rate(self) -> float:
        """Failures per node and second."""
        growth = power(self.nodes / SCALE_FROM, self.scale_exponent) if self.scale_exponent else 1.0
        return self.failures * growth / 1000.0 / DAY_S


class Case(Struct, frozen=True, kw_only=True):
    """One answer wanted: a policy, an interval, a number of spares."""

    policy_name: str = "default"
    policy: str = ""
    """Text of the policy; empty: the defaults."""
    checkpoint_s: float = 0.0
    """0.0: the best one by the formula."""
    spares: int = 8


class Run(Struct):
    """What one run says."""

    seed: int
    ettr: float
    goodput: float
    badput: dict[str, float]
    """Category -> share of wall time."""
    faults: int
    failures: int
    """Attempts that ended before their time."""
    attempts: int
    resubmitted: int
    """Times that the owner had to queue it again."""
    incidents: int
    events: int
    orders: int
    journal_bytes: int
    digest: str
    refused: int


class Answer(Struct):
    """One case over all seeds."""

    case: Case
    checkpoint_s: float
    formula: float
    """Meta's expected ETTR at this interval, with u0 = start + load."""
    runs: list[Run] = field(default_factory=list)

    @property
    def ettr(self) -> float:
        """Mean over seeds."""
        return fmean(run.ettr for run in self.runs)

    @property
    def goodput(self) -> float:
        """Mean over seeds."""
        return fmean(run.goodput for run in self.runs)

    @property
    def spread(self) -> tuple[float, float, float]:
        """Standard deviation (0 for one seed), least and greatest ETTR."""
        found = [run.ettr for run in self.runs]
        return (stdev(found) if len(found) > 1 else 0.0), min(found), max(found)

    @property
    def badput(self) -> dict[str, float]:
        """Mean share of wall time per category."""
        return {name: fmean(run.badput[name] for run in self.runs) for name in CATEGORIES}


def check(question: Question, cases: Sequence[Case]) -> None:
    """Raise UsageError with one clear sentence when a question makes no sense."""
    if question.gpus < GPUS_PER_NODE or question.gpus % GPUS_PER_NODE:
        raise UsageError(f"--gpus {question.gpus} is no multiple of the {GPUS_PER_NODE} GPUs of a node")
    if question.jobs < 1 or question.nodes % question.jobs:
        raise UsageError(f"{question.nodes} nodes cannot be shared by {question.jobs} jobs of equal size")
    if not 0 < question.days <= 3660:
        raise UsageError(f"--days {question.days:g} is not between 0 and 3660")
    if question.failures < 0:
        raise UsageError(f"--failures {question.failures:g} is less than nothing")
    for case in cases:
        if case.checkpoint_s < 0 or case.spares < 0:
            raise UsageError("an interval or a number of spares is less than nothing")
        if case.checkpoint_s == 0 and (question.failures == 0 or question.save_s == 0):
            raise UsageError("without failures, or with saves that cost nothing, there is no best interval: name one")


def interval_of(question: Question, case: Case) -> float:
    """The case's checkpoint interval in seconds."""
    return case.checkpoint_s or best_interval_s(question.job_nodes, question.rate, question.save_s)


def options_for(question: Question, case: Case, seed: int) -> SimOptions:
    """The simulation of one seed."""
    interval_s = interval_of(question, case)
    jobs = tuple(
        JobPlan(
            id=str(number + 1),
            nodes=question.job_nodes,
            checkpoint_s=interval_s,
            save_s=question.save_s,
            start_s=question.start_s,
            load_s=question.load_s,
            in_place_s=min(question.in_place_s, question.start_s),
            resubmit_s=3600.0,
        )
        for number in range(question.jobs)
    )
    return SimOptions(
        seed=seed,
        nodes=question.nodes + case.spares,
        spares=case.spares,
        nodes_per_switch=32,
        jobs=jobs,
        fault_s=question.days * DAY_S,
        policy=case.policy,
        keep_journal=False,
        failures=question.failures,
        causes=question.causes,
        scale_exponent=question.scale_exponent,
        lemons=question.lemons,
        spares_apart=True,
        command_s=COMMAND_S,
        lease_s=4 * DAY_S,
    )


def summary(seed: int, result: SimResult) -> Run:
    """What is kept of one run."""
    ledgers = result.ledgers
    wall_s, productive_s = sum(one.wall_s for one in ledgers), sum(one.productive_s for one in ledgers)
    badput_s = {name: sum(one.badput[name] for one in ledgers) for name in CATEGORIES}
    return Run(
        seed=seed,
        ettr=_share(productive_s, wall_s),
        goodput=_share(productive_s, wall_s - badput_s["startup"]),
        badput={name: _share(lost_s, wall_s) for name, lost_s in badput_s.items()},
        faults=sum(happening.what == "fault" for happening in result.truth),
        failures=sum(one.failures for one in ledgers),
        attempts=sum(one.attempts for one in ledgers),
        resubmitted=result.counts.get("resubmitted", 0),
        incidents=len(result.incidents),
        events=result.events,
        orders=result.orders_given,
        journal_bytes=result.bytes_written,
        digest=result.digest,
        refused=len(result.refused),
    )


def _share(part_s: float, wall_s: float) -> float:
    return part_s / wall_s if wall_s > 0 else 0.0


def run_one(question: Question, case: Case, seed: int, progress: Progress | None = None) -> Run:
    """One seed of one case."""
    return summary(seed, simulate(options_for(question, case, seed), progress=progress))


def ask(
    question: Question,
    cases: Sequence[Case],
    seeds: Sequence[int],
    *,
    processes: int = 1,
    on_part: Callable[[float], None] | None = None,
) -> list[Answer]:
    """Run every case with every seed.

    Args:
        question: what all cases share.
        cases: what differs.
        seeds: each is a plan of faults.
        processes: runs beside each other.
        on_part: told the share of all work that was done since it was last told.

    Raises:
        UsageError, ConfigError: something asked for makes no sense.
    """
    check(question, cases)
    answers = []
    for case in cases:
        interval_s = interval_of(question, case)
        u0_s = question.start_s + question.load_s
        formula = formula_ettr(question.job_nodes, question.rate, u0_s, question.save_s, interval_s)
        answers.append(Answer(case, interval_s, formula))
    work = [(answer, seed) for answer in answers for seed in seeds]
    tell = on_part or (lambda _: None)
    if processes > 1:
        with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
            made = [(answer, pool.submit(run_one, question, answer.case, seed)) for answer, seed in work]
            for answer, run in made:
                answer.runs.append(run.result())
                tell(1.0 / len(work))
        return answers
    for answer, seed in work:
        answer.runs.append(run_one(question, answer.case, seed, _in_parts(len(work), tell)))
    return answers


def _in_parts(runs: int, tell: Callable[[float], None]) -> Progress:
    """Progress of one of so many runs, told as shares of all work."""
    told = 0.0

    def progress(done_s: float, total_s: float) -> None:
        nonlocal told
        tell((done_s / total_s - told) / runs)
        told = done_s / total_s

    return progress
