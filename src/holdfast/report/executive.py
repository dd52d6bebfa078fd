"""The report in a few sentences, for those who read no further. Called by every form of the full report. Pure.

Each sentence is one that `words_ja` has a template for.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.report.gather import ReportData
from holdfast.report.section import Section, table
from holdfast.report.tables import percent, seconds
from holdfast.report.training_time import in_total


def executive(data: ReportData) -> Section:
    """One row for each thing that is known: what it is about, a sentence."""
    rows = [row for make in (_ran, _training, _objectives, _speed, _converged, _cost, _proposed) for row in make(data)]
    return table("executive", "Executive summary", "", ("", "in short"), rows)


Rows = Iterator[tuple[str, str]]


def _ran(data: ReportData) -> Rows:
    made = data.totals
    yield (
        "what ran",
        f"Jobs: {len(data.jobs)}, nodes: {data.fleet.nodes}, incidents: {made.incidents}, recovered: {made.recovered}.",
    )
    if made.mttd.n and made.mttr.n:
        detect, again = seconds(made.mttd.mean), seconds(made.mttr.mean)
        yield "recovery", f"A fault was noticed after {detect}, and training went on after {again} (means)."


def _training(data: ReportData) -> Rows:
    found = in_total(data.training_times)
    if found.efficiency is not None:
        times = f"{seconds(found.trained_s)} trained, {seconds(found.downtime_s)} down"
        failed = f"{found.restarts_failed} of {found.restarts} restarts failed"
        yield "training-time efficiency", f"{percent(found.efficiency)}: {times}; {failed}."


def _objectives(data: ReportData) -> Rows:
    judged = [one for one in data.verdicts if one.passed is not None]
    if not data.verdicts:
        yield "objectives", "None is set in [slo] of the policy."
        return
    yield "objectives", f"{sum(1 for one in judged if one.passed)} of {len(judged)} met."
    for one in judged:
        if not one.passed:
            yield "missed objective", f"{one.objective}: {one.measured}, target {one.target}."


def _speed(data: ReportData) -> Rows:
    lost = [one.loss_percent for one in data.throughputs if one.loss_percent is not None]
    if lost and max(lost) > 0:
        yield "throughput", f"At most {max(lost):.1f} % slower than before (recoveries: {len(lost)})."
    elif lost:
        yield "throughput", f"As fast as before (recoveries: {len(lost)})."


def _converged(data: ReportData) -> Rows:
    for figure in ("training loss", "accuracy"):
        apart = [one.difference for one in data.convergences if one.figure == figure]
        if apart:
            yield figure, f"At most {max(apart):.3g} away from before (recoveries: {len(apart)})."


def _cost(data: ReportData) -> Rows:
    cost, price = data.fleet.cost, data.economics.gpu_hour
    if price:
        yield "cost", f"{cost.lost:.2f} GPU-hours were lost, which cost {cost.lost_money:,.2f}."
    else:
        yield "cost", f"{cost.lost:.2f} GPU-hours were lost."


def _proposed(data: ReportData) -> Rows:
    for one in data.proposals[:1]:
        yield "first proposal", one.what
