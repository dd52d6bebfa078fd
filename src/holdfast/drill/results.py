"""What a drill run is written down as: one `DrillResult` each, JSON in a stable form, JUnit XML, a line for people.

Form of the JSON (docs/drills.md): `{version, passed, seed, workload, cluster, started_at, seconds, drills: [{name,
kind, passed, skipped, reason, target: {rank, node, step}, fault_at, cause, suspects, remedies, checks: [{name, passed,
expected, actual}], incident, outcome, phases: {name: seconds}, offsets: {mark: seconds}, detect_s, recover_s,
lost_steps, seconds}]}`. `version` rises when a field changes its meaning; fields are only added. Pure; no time passes.
"""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
from msgspec import Struct, field

from holdfast.drill.scenario import Scenario
from holdfast.drill.verdict import Check, Fired
from holdfast.model.records import IncidentRecord, Mark
from holdfast.report.timeline import span, timeline

VERSION = 1
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class DrillResult(Struct, kw_only=True):
    """One drill from fault to verdict."""

    name: str
    kind: str
    checks: list[Check] = field(default_factory=list)
    fired: Fired | None = None
    incident: IncidentRecord | None = None
    seconds: float = 0.0
    """The whole drill, waiting for the steady state included."""
    skipped: str = ""
    """Why it was not tried; a skipped drill neither passes nor fails the run."""

    @property
    def passed(self) -> bool:
        """Whether every check has passed; false for a drill without checks."""
        return not self.skipped and bool(self.checks) and all(check.passed for check in self.checks)

    @property
    def failures(self) -> list[Check]:
        """Checks that have not passed."""
        return [check for check in self.checks if not check.passed]

    @property
    def detect_s(self) -> float | None:
        """Fault to finding."""
        return self._since_fault(Mark.DETECTED)

    @property
    def recover_s(self) -> float | None:
        """Fault to proven recovery."""
        return self._since_fault(Mark.PROVEN)

    def _since_fault(self, mark: Mark) -> float | None:
        if self.incident is None:
            return None
        if self.fired is None:
            return span(self.incident, Mark.FAULT, mark)
        at = self.incident.marks.get(mark)
        return None if at is None else max(0.0, at - self.fired.at)


class DrillRun(Struct, kw_only=True):
    """Several drills in a row."""

    seed: int
    workload: str = ""
    cluster: str = ""
    started_at: float = 0.0
    seconds: float = 0.0
    drills: list[DrillResult] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Every drill that was tried has passed, and one was tried."""
        tried = [drill for drill in self.drills if not drill.skipped]
        return bool(tried) and all(drill.passed for drill in tried)


def skipped(scenario: Scenario, why: str) -> DrillResult:
    """The result of a drill that was not tried."""
    return DrillResult(name=scenario.name, kind=scenario.kind, skipped=why)


def drill_form(result: DrillResult) -> dict[str, Any]:
    """One drill as plain data."""
    incident, fired = result.incident, result.fired
    cut = timeline(incident) if incident else None
    found = incident.diagnosis if incident else None
    phases: dict[str, float] = {}
    for phase in cut.phases if cut else ():
        phases[phase.name] = phases.get(phase.name, 0.0) + phase.seconds
    return {
        "name": result.name,
        "kind": result.kind,
        "passed": result.passed,
        "skipped": bool(result.skipped),
        "reason": result.skipped or "; ".join(_failure(check) for check in result.failures),
        "target": {
            "rank": fired.rank if fired else None,
            "node": fired.node if fired else "",
            "step": fired.step if fired else None,
        },
        "fault_at": fired.at if fired else None,
        "cause": found.cause if found else None,
        "suspects": {"nodes": list(found.nodes) if found else [], "ranks": list(found.ranks) if found else []},
        "remedies": [remedy.value for remedy in incident.remedies] if incident else [],
        "checks": [msgspec.to_builtins(check) for check in result.checks],
        "incident": incident.id if incident else None,
        "outcome": (incident.outcome or "open") if incident else None,
        "phases": phases,
        "offsets": {mark.value: seconds for mark, seconds in cut.offsets.items()} if cut else {},
        "detect_s": result.detect_s,
        "recover_s": result.recover_s,
        "lost_steps": incident.lost_steps if incident else None,
        "seconds": result.seconds,
    }


def run_form(run: DrillRun) -> dict[str, Any]:
    """A whole run as plain data."""
    return {
        "version": VERSION,
        "passed": run.passed,
        "seed": run.seed,
        "workload": run.workload,
        "cluster": run.cluster,
        "started_at": run.started_at,
        "seconds": run.seconds,
        "drills": [drill_form(drill) for drill in run.drills],
    }


def render_json(run: DrillRun) -> str:
    """A whole run as text."""
    return msgspec.json.format(msgspec.json.encode(run_form(run)), indent=2).decode() + "\n"


def render_junit(run: DrillRun) -> str:
    """JUnit XML as CI systems read it: one test case per drill, its checks as the failure's text."""
    tried = [drill for drill in run.drills if not drill.skipped]
    suite = ET.Element(
        "testsuite",
        name="holdfast drill",
        tests=str(len(run.drills)),
        failures=str(sum(1 for drill in tried if not drill.passed)),
        errors="0",
        skipped=str(len(run.drills) - len(tried)),
        time=f"{run.seconds:.3f}",
    )
    for drill in run.drills:
        case = ET.SubElement(
            suite, "testcase", classname="holdfast.drill", name=drill.name, time=f"{drill.seconds:.3f}"
        )
        if drill.skipped:
            ET.SubElement(case, "skipped", message=_clean(drill.skipped))
        elif not drill.passed:
            lines = [_clean(_failure(check)) for check in drill.failures]
            failure = ET.SubElement(case, "failure", message=lines[0] if lines else "nothing was checked")
            failure.text = "\n".join(lines)
        out = ET.SubElement(case, "system-out")
        out.text = "\n".join(
            _clean(f"{'ok' if check.passed else 'FAILED'}  {check.name}: {check.actual}") for check in drill.checks
        )
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _failure(check: Check) -> str:
    return f"{check.name}: expected {check.expected}, got {check.actual}"


def _clean(text: str) -> str:
    """Without the characters that XML 1.0 cannot hold; log text may contain them."""
    return _UNPRINTABLE.sub("?", text)
