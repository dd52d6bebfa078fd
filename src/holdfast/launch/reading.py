"""From matched log lines to findings and progress: what a node reports of its ranks' output. No time passes here."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.detect.findings import RuleRates, counted, to_finding
from holdfast.detect.matcher import Match
from holdfast.detect.told import is_durable, path_told, seconds_told, step_told
from holdfast.launch.frames import LineSeen
from holdfast.model.cluster import JobKey
from holdfast.model.evidence import Finding, Place, Role

_FAULTS = frozenset({Role.ROOT, Role.CASCADE, Role.CONTEXT})


class OutputReader:
    """Sorts the matches of one attempt's output on one node."""

    def __init__(self, *, job: JobKey, node: str, attempt: int, source: str) -> None:
        self._job = job
        self._node = node
        self._attempt = attempt
        self._source = source
        self._rates = RuleRates()
        self._last_step: int | None = None

    def findings(self, matches: Sequence[Match], *, rank: int | None, file: str, at: float) -> tuple[Finding, ...]:
        """Faults and their context, at most as many of each rule as the catalogue allows."""
        found = []
        for match in matches:
            if match.rule.role not in _FAULTS:
                continue
            count = self._rates.admit(match.rule, match.rank, at)
            if count:
                finding = to_finding(
                    match,
                    source_place=Place(node=self._node, rank=rank),
                    job=self._job,
                    attempt=self._attempt,
                    at=at,
                    id_prefix=f"{self._source}/{self._node}/a{self._attempt}/{'cmd' if rank is None else rank}",
                    file=file,
                )
                found.append(counted(finding, count))
        return tuple(found)

    def progress(self, matches: Sequence[Match], *, rank: int | None, at: float) -> LineSeen | None:
        """The newest step and checkpoint among these lines."""
        first = step = loss = accuracy = step_s = checkpoint = None
        durable, path, took_s = False, "", None
        for match in matches:
            captures = match.captures
            number = step_told(match)
            if match.rule.role is Role.PROGRESS and number is not None:
                step, loss, step_s = number, _real(captures.get("loss")), _step_seconds(captures)
                accuracy = _real(captures.get("accuracy"))
                if first is None:
                    first = int(match.numbers[0]) if match.numbers else number
                self._last_step = number
            elif match.rule.role is Role.CHECKPOINT and (number := self._last_step if number is None else number):
                durable, path, seconds = is_durable(match), path_told(match), seconds_told(match)
                # A timer's line may follow the one that names the step.
                took_s = seconds if seconds is not None or number != checkpoint else took_s
                checkpoint = number
        if step is None and checkpoint is None:
            return None
        return LineSeen(
            attempt=self._attempt,
            at=at,
            rank=rank,
            first=first,
            step=step,
            loss=loss,
            accuracy=accuracy,
            step_s=step_s,
            checkpoint=checkpoint,
            durable=durable,
            path=path,
            took_s=took_s,
        )


def _real(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


def _step_seconds(captures: dict[str, str]) -> float | None:
    """Seconds per step, from whichever way the line tells it."""
    seconds = _real(captures.get("elapsed_s")) or _real(captures.get("s_it"))
    if seconds:
        return seconds
    if milliseconds := _real(captures.get("elapsed_ms")):
        return milliseconds / 1000
    if rate := _real(captures.get("it_s")) or _real(captures.get("steps_per_s")):
        return 1 / rate
    return None
