"""How often a job should save: the interval that loses least, from what its saves cost and how often it failed.

Called by every form of report. Pure: all times were measured elsewhere. Saving too often holds the training, saving too
rarely has more of it done again after a failure; between them lies one best interval.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import exp, expm1, sqrt
from statistics import fmean, median

from msgspec import Struct, structs

from holdfast.model.records import IncidentRecord, JobRecord, Mark
from holdfast.report.figures import of_known_attempts
from holdfast.report.timeline import spans

OFF_BY = 2.0
"""An interval this many times longer or shorter than the best one is worth a word: closer to it the loss is flat
(at twice the best interval the two losses together are 1.25 times their least)."""

MOST = 500.0
"""An interval of so many times between failures never ends: all is lost."""


class IntervalAdvice(Struct, frozen=True):
    """One job's interval between durable checkpoints. Seconds; None: not measured."""

    job: str
    actual_s: float | None
    """Median time between two durable checkpoints of one attempt."""
    save_s: float | None
    """Median time that a save held the training."""
    mtbf_s: float | None
    """Time that the job was up for each failure that ended an attempt."""
    failures: int
    best_s: float | None
    loss_actual: float | None
    """Share of the time that is lost at the actual interval."""
    loss_best: float | None
    """The same at the best one."""
    says: str
    """The advice in a sentence, or what is missing for one."""
    drills: int = 0
    """How many of the failures were drills: with any, the advice is not to be acted on."""

    @property
    def is_off(self) -> bool:
        """Is the actual interval so far from the best one that a change is worth while?"""
        if self.actual_s is None or self.best_s is None:
            return False
        return not self.best_s / OFF_BY <= self.actual_s <= self.best_s * OFF_BY


def best_interval_s(save_s: float, mtbf_s: float) -> float:
    """The time between two saves at which least is lost, in seconds.

    Young's first-order optimum is `sqrt(2 w M)` (J. W. Young, A first order approximation to the optimum checkpoint
    interval, CACM 17(9), 1974), which is also Meta's `sqrt(2 w / (N rf))` with `M = 1 / (N rf)` (A. Kokolis et al.,
    arXiv:2410.21680). This is Daly's higher-order form of it (J. T. Daly, FGCS 22(3), 2006):
    `sqrt(2 w M) (1 + sqrt(w / 2M) / 3 + (w / 2M) / 9) - w` for `w < 2 M`, else `M`; it counts from the end of one save
    to the begin of the next, so `w` is added to give the time from save to save. It is
    within 1 % of the exact optimum up to `w` = `M`.

    Args:
        save_s: time that one save holds the training, `w`, more than 0.
        mtbf_s: mean time between failures of the whole job, `M`, more than 0.

    Raises:
        ValueError: one of them is not more than 0.
    """
    if not (save_s > 0 and mtbf_s > 0):
        raise ValueError(f"save_s={save_s} and mtbf_s={mtbf_s} must be more than 0")
    if save_s >= 2 * mtbf_s:
        return mtbf_s + save_s
    ratio = save_s / (2 * mtbf_s)
    return sqrt(2 * save_s * mtbf_s) * (1 + sqrt(ratio) / 3 + ratio / 9)


def lost_share(interval_s: float, save_s: float, mtbf_s: float, restart_s: float) -> float:
    """Share of a job's time (0 to 1) that is lost when it saves every `interval_s`.

    Daly's complete model (FGCS 22(3), 2006): `1 - (dt - w) exp(-R / M) / (M (exp(dt / M) - 1))`, with `dt` from save to
    save and `R` = `restart_s`, the time from a fault until training goes on. Meta's
    `1 - (1 - (R + dt/2) / M) / (1 + w / dt)` (arXiv:2410.21680) is of first order in `dt / M`: at the best interval the
    two are 0.01 apart at `w` = 0.05 `M`, and 0.1 at `w` = `M`, where Meta's is no longer least at the best interval.
    """
    if interval_s <= save_s or interval_s / mtbf_s > MOST:
        return 1.0
    kept = (interval_s - save_s) * exp(-restart_s / mtbf_s) / (mtbf_s * expm1(interval_s / mtbf_s))
    return min(1.0, max(0.0, 1 - kept))


def advise(
    job: JobRecord,
    incidents: Sequence[IncidentRecord],
    *,
    durable: Iterable[float],
    saves_s: Iterable[float],
    up_s: float,
) -> IntervalAdvice:
    """What a job's history says about its interval.

    Args:
        job: its record.
        incidents: those of the report; only the ones that ended an attempt of this job count.
        durable: when its checkpoints were durable, Unix seconds.
        saves_s: seconds that each save held the training.
        up_s: seconds of the report's span in which its processes ran.
    """
    own = of_known_attempts((i for i in incidents if job.key in i.jobs), [job])
    mtbf_s = up_s / len(own) if own and up_s > 0 else None
    cost = [value for value in saves_s if value > 0]
    save_s = median(cost) if cost else None
    found = IntervalAdvice(str(job.key), _actual_s(job, durable), save_s, mtbf_s, len(own), None, None, None, "")
    if save_s is None or mtbf_s is None:
        return structs.replace(found, says=_missing(save_s, failures=len(own)))
    best_s = best_interval_s(save_s, mtbf_s)
    restarts = [value for value in spans(own, Mark.FAULT, Mark.FIRST_STEP) if value is not None]
    restart_s = fmean(restarts) if restarts else 0.0
    found = structs.replace(
        found,
        best_s=best_s,
        loss_actual=None if found.actual_s is None else lost_share(found.actual_s, save_s, mtbf_s, restart_s),
        loss_best=lost_share(best_s, save_s, mtbf_s, restart_s),
        drills=sum(1 for incident in own if incident.drill),
    )
    return structs.replace(found, says=_sentence(found))


def _actual_s(job: JobRecord, durable: Iterable[float]) -> float | None:
    """Median gap between durable checkpoints, never across a restart."""
    starts = sorted(attempt.started_at for attempt in job.attempts if attempt.started_at)
    gaps = [b - a for a, b in pairwise(sorted(durable)) if bisect_right(starts, a) == bisect_right(starts, b)]
    return median(gaps) if gaps else None


def _missing(save_s: float | None, *, failures: int) -> str:
    if save_s is None:
        return (
            "No advice: what a save costs was not measured. Put `with holdfast.telemetry.phase('checkpoint'):` around"
            " saving, or save with holdfast.checkpoint."
        )
    reason = "no failure has ended an attempt yet" if not failures else "the time that the job was up is not known"
    return f"No advice: {reason}, so that nothing tells how often it will fail."


def _sentence(found: IntervalAdvice) -> str:
    if found.best_s is None or found.save_s is None or found.mtbf_s is None or found.loss_best is None:
        return ""
    text = (
        f"A save holds the training for {_short(found.save_s)} and the job fails every {_short(found.mtbf_s)}: saving"
        f" every {_short(found.best_s)} loses least ({100 * found.loss_best:.1f} % of the time)"
    )
    if found.actual_s is not None and found.loss_actual is not None:
        text += f"; it saves every {_short(found.actual_s)} ({100 * found.loss_actual:.1f} %)"
        if found.is_off:
            text += f", {'more' if found.actual_s < found.best_s else 'less'} often than is worth while"
    text += "."
    if found.drills:
        text += f" {found.drills} of its {found.failures} failures were drills: leave those out before acting on this."
    return text


def _short(value: float) -> str:
    """`0.4 s`, `31 s`, `12 min`, `3.1 h`: two digits are enough for advice."""
    if value < 10:
        return f"{value:.2g} s"
    if value < 120:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"
