"""Swarms of simulated runs: each seed draws its own options and faults, judges look, and what fails is made small.

`holdfast simulate fuzz` and the tests call `search`; one seed is one `Trial`, which can be told in one command. Runs
are spread over processes; the verdicts depend on nothing but the trials. Time is virtual inside a run; outside it only
bounds how long a run may take before it counts as one that never ends.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import shlex
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from types import FrameType

from msgspec import Struct, structs

from holdfast.decide.engine import Engine
from holdfast.errors import UsageError
from holdfast.sim.checkers import Complaint
from holdfast.sim.faults import plan
from holdfast.sim.judging import complaints_about
from holdfast.sim.options import SHARES, SimOptions, changed, draw
from holdfast.sim.record import SimResult
from holdfast.sim.run import simulate
from holdfast.sim.shrink import TRIES_MAX, smallest

RUN_LIMIT_S = 300.0
"""A run takes tenths of a second; one that is not done by then goes round in circles."""
CHUNK = 8
"""Seeds handed to a process at once."""
TWICE_EVERY = 25
"""Every so many seeds a run is made twice, and both must give the same bytes."""
CAN_BE_OFF = (*SHARES, "message_jitter_s", "clock_drift_s", "clock_drift_ppm", "echoes", "lemons", "preempt")
"""Options of a swarm that are no planned faults: what shrinking tries without."""


class Trial(Struct, frozen=True, kw_only=True):
    """One run, as it can be told: a seed, and what of its swarm is left out."""

    seed: int
    only: tuple[str, ...] | None = None
    """Ids of the planned faults that happen; None: all of them."""
    off: tuple[str, ...] = ()
    """Options of `CAN_BE_OFF` that are set to zero."""

    def options(self) -> SimOptions:
        """All options of the run. Raises UsageError for a fault or option that it does not have."""
        drawn = draw(self.seed)
        wrong = set(self.off) - set(CAN_BE_OFF)
        if wrong:
            raise UsageError(f"{min(wrong)!r} cannot be switched off: {', '.join(CAN_BE_OFF)}")
        options = changed(drawn, **{name: type(getattr(drawn, name))() for name in self.off})
        if self.only is None:
            return options
        planned = [fault.id for fault in plan(drawn)]
        unknown = set(self.only) - set(planned)
        if unknown:
            raise UsageError(f"seed {self.seed} plans no fault {min(unknown)!r}")
        return changed(options, drop=tuple(name for name in planned if name not in self.only))

    def command(self) -> str:
        """What repeats it."""
        words = ["holdfast", "simulate", "fuzz", "--from", str(self.seed), "--seeds", "1"]
        if self.only is not None:
            words += ["--only", ",".join(self.only)]
        if self.off:
            words += ["--off", ",".join(self.off)]
        return shlex.join(words)


class Verdict(Struct, frozen=True, kw_only=True):
    """What came of a trial."""

    trial: Trial
    complaints: tuple[Complaint, ...] = ()
    faults: tuple[str, ...] = ()
    """Ids of the faults that were planned and not left out."""
    events: int = 0
    incidents: int = 0
    digest: str = ""
    twice: bool = False
    """It was run twice and compared."""

    @property
    def ok(self) -> bool:
        """Has nobody anything to say?"""
        return not self.complaints

    @property
    def judges(self) -> frozenset[str]:
        """Who complains."""
        return frozenset(complaint.judge for complaint in self.complaints)


# --- one trial --------------------------------------------------------------------------------------------------------


def examine(trial: Trial, *, engine: type[Engine] = Engine, twice: bool = False) -> Verdict:
    """Run it and have it judged. An error inside the run is a complaint, too.

    Args:
        trial: what to run.
        engine: the engine's class; tests plant bugs in it.
        twice: run it twice, and compare the journals byte by byte.

    Raises:
        UsageError: the trial names faults or options that its seed does not have.
    """
    options = trial.options()
    left_out = frozenset(options.drop)
    faults = tuple(fault.id for fault in plan(options) if fault.id not in left_out)
    complaints: list[Complaint] = []
    result: SimResult | None = None
    try:
        with _ends_within(RUN_LIMIT_S):
            result = simulate(options, engine=engine)
            complaints += complaints_about(result, engine=engine)
            if twice and simulate(options, engine=engine).digest != result.digest:
                complaints.append(Complaint("same_seed_same_bytes", "two runs of this seed gave two journals"))
    except _NeverEndsError:
        complaints.append(Complaint("run_ends", f"it was not over after {RUN_LIMIT_S:g} s of real time"))
    except Exception as error:  # noqa: BLE001
        # Whatever breaks inside is what the fuzzer is there to find; it must not end the search.
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{place.filename.rpartition('/')[2]}:{place.lineno}"
        complaints.append(Complaint("run_does_not_break", f"{error!r} at {where}"))
    return Verdict(
        trial=trial,
        complaints=tuple(complaints),
        faults=faults,
        events=result.events if result is not None else 0,
        incidents=len(result.incidents) if result is not None else 0,
        digest=result.digest if result is not None else "",
        twice=twice,
    )


class _NeverEndsError(Exception):
    """The alarm of a run that goes round in circles."""


@contextlib.contextmanager
def _ends_within(seconds: float) -> Iterator[None]:
    """Break off what takes longer, where the process can be woken: in its main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def wake(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise _NeverEndsError

    before = signal.signal(signal.SIGALRM, wake)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def shrunk(verdict: Verdict, *, engine: type[Engine] = Engine, tries: int = TRIES_MAX) -> Verdict:
    """The same failure with as few faults and options as possible: one of its judges still complains."""
    trial, judges = verdict.trial, verdict.judges
    found = verdict

    def fails(candidate: Trial) -> bool:
        nonlocal found
        made = examine(candidate, engine=engine)
        if made.judges & judges:
            found = made
            return True
        return False

    drawn = draw(trial.seed)
    on = [name for name in CAN_BE_OFF if name not in trial.off and getattr(drawn, name)]

    def with_options(kept: tuple[str, ...]) -> Trial:
        off = tuple(name for name in CAN_BE_OFF if name in trial.off or (name in on and name not in kept))
        return structs.replace(trial, off=off)

    kept = smallest(on, lambda names: fails(with_options(names)), tries=tries // 4)
    base = with_options(tuple(kept))
    smallest(verdict.faults, lambda names: fails(structs.replace(base, only=names)), tries=tries)
    return found


# --- many -------------------------------------------------------------------------------------------------------------


def search(
    seeds: Sequence[int],
    *,
    processes: int = 1,
    only: tuple[str, ...] | None = None,
    off: tuple[str, ...] = (),
    on_verdict: Callable[[Verdict], None] | None = None,
) -> list[Verdict]:
    """Examine all seeds; returns the failing ones in order of seed.

    Args:
        seeds: which.
        processes: how many run beside each other; 1: in this one.
        only: see `Trial`.
        off: see `Trial`.
        on_verdict: told each verdict, in order of seed.
    """
    trials = [Trial(seed=seed, only=only, off=off) for seed in seeds]
    failed = []
    with _mapper(processes, len(trials), CHUNK) as each:
        for verdict in each(_examined, trials):
            if on_verdict is not None:
                on_verdict(verdict)
            if not verdict.ok:
                failed.append(verdict)
    return failed


def shrink_all(verdicts: Sequence[Verdict], *, processes: int = 1) -> list[Verdict]:
    """Each failure made small."""
    with _mapper(processes, len(verdicts), 1) as each:
        return list(each(shrunk, verdicts))


@contextlib.contextmanager
def _mapper(processes: int, count: int, chunk: int) -> Iterator[Callable[..., Iterable[Verdict]]]:
    """`map`, over so many processes when there is more than a chunk of work."""
    if processes <= 1 or count <= chunk:
        yield map
        return
    # Spawned, not forked: a child must not inherit half of this process's threads and locks.
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield functools.partial(pool.map, chunksize=chunk)


def _examined(trial: Trial) -> Verdict:
    return examine(trial, twice=trial.seed % TWICE_EVERY == 0)
