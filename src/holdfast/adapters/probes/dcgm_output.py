"""What DCGM's tools print, as values: `dcgmi diag -j`, `dcgmi health -c`, `dcgmi policy --reg`, dcgm-exporter's page.

Pure. The diag's JSON has changed: 2.x and 3.x put results by GPU below `DCGM GPU Diagnostic`; 4.x names the object
`DCGM Diagnostic`, puts results by entity, and gives each warning an id and a severity of dcgm_errors.h.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Struct

CONFIG, RESET = 5, 6
"""Error severities of DCGM (dcgm_errors.h): its configuration is wrong; reset it."""
_PASS = frozenset({"pass", "skip", "skipped", "not applicable", "notrun", "not run", "n/a", ""})


class DiagFailure(Struct, frozen=True, kw_only=True):
    """One test that did not pass on one GPU (or on all, `gpu` None)."""

    test: str
    gpu: int | None = None
    status: str = "fail"
    """`fail` or `warn`."""
    text: str = ""
    severity: int | None = None


class Diag(Struct, frozen=True, kw_only=True):
    """What a diagnostic says."""

    failures: tuple[DiagFailure, ...] = ()
    error: str = ""
    """Why it could not run."""


def parse_diag(out: str, err: str = "") -> Diag:
    """Read the output of `dcgmi diag -j`; text around the JSON is allowed."""
    start = out.find("{")
    try:
        data = msgspec.json.decode(out[start : out.rindex("}") + 1]) if start >= 0 else None
    except (msgspec.DecodeError, ValueError):
        data = None
    if not isinstance(data, dict):
        return Diag(error=_first_line(out) or _first_line(err) or "it printed nothing")
    root = data.get("DCGM Diagnostic") or data.get("DCGM GPU Diagnostic") or data
    categories = [one for one in root.get("test_categories") or [root] if isinstance(one, dict)]
    tests = [test for one in categories for test in one.get("tests") or () if isinstance(test, dict)]
    error = root.get("runtime_error") or data.get("runtime_error") or data.get("error") or ""
    failures = tuple(failure for test in tests for failure in _failures(test))
    return Diag(failures=failures, error=str(error) if error or tests else "it ran no test")


def _failures(test: dict[str, Any]) -> list[DiagFailure]:
    found: list[DiagFailure] = []
    for result in test.get("results") or ():
        if not isinstance(result, dict):
            continue
        status = str(result.get("status", "")).strip().lower()
        if status in _PASS:
            continue
        word = "warn" if status.startswith("warn") else "fail"
        warnings = result.get("warnings") or [result.get("info", "")]
        for warning in warnings if isinstance(warnings, list) else [warnings]:
            found += [
                DiagFailure(test=str(test.get("name", "?")), gpu=gpu, status=word, **_warning(warning))
                for gpu in _gpus(result)
            ]
    return found


def _warning(warning: Any) -> dict[str, Any]:
    if not isinstance(warning, dict):
        return {"text": str(warning or "")}
    severity = warning.get("error_severity")
    return {"text": str(warning.get("warning", "")), "severity": severity if isinstance(severity, int) else None}


def _gpus(result: dict[str, Any]) -> list[int | None]:
    """`gpu_ids` is a number, a text of numbers with commas, or missing; DCGM 4 has `entity_id`."""
    if result.get("entity_group", "GPU") != "GPU":
        return [None]
    ids = result.get("gpu_ids", result.get("gpu_id", result.get("entity_id")))
    numbers = [int(part) for part in str(ids).split(",") if part.strip().isdigit()]
    # One result for many GPUs speaks of the node.
    return [numbers[0]] if len(numbers) == 1 else [None]


class HealthItem(Struct, frozen=True, kw_only=True):
    """One system of one GPU that DCGM's health watch finds unwell."""

    gpu: int | None
    system: str
    failure: bool
    text: str = ""


_ROW = re.compile(r"^\|(?P<left>[^|]*)\|(?P<right>[^|]*)\|")


def parse_health(out: str) -> tuple[str, tuple[HealthItem, ...]]:
    """Read the table of `dcgmi health -c`: overall word (empty: not understood) and items."""
    overall = ""
    items: list[HealthItem] = []
    gpu: int | None = None
    for line in out.splitlines():
        if (found := re.search(r"Overall Health:?\s*\|?\s*(\w+)", line)) is not None:
            overall = found[1]
            continue
        if (row := _ROW.match(line)) is None:
            continue
        left, right = row["left"].strip().removeprefix("->").strip(), row["right"].strip()
        if left.isdigit():
            gpu = int(left)
        elif left.endswith("system") and right in {"Warning", "Failure"}:
            items.append(HealthItem(gpu=gpu, system=left.removesuffix(" system"), failure=right == "Failure"))
        elif not left and right and items:
            last = items.pop()
            items.append(msgspec.structs.replace(last, text=f"{last.text} {right}".strip()))
    return overall, tuple(items)


class Violation(Struct, frozen=True, kw_only=True):
    """One policy violation."""

    kind: str
    """`dbe`, `pcie`, `retired`, `thermal`, `power`, `nvlink`, `xid`."""
    value: int | None = None
    text: str = ""


_VIOLATIONS = (
    ("dbe", re.compile(r"double-bit ECC error has violated")),
    ("pcie", re.compile(r"PCIe (?:replay event|error) has violated")),
    ("retired", re.compile(r"maximum number of retired pages has violated")),
    ("thermal", re.compile(r"maximum thermal limit has violated")),
    ("power", re.compile(r"maximum power limit has violated")),
    ("nvlink", re.compile(r"NVLink (?:Counter \d+|error) has violated")),
    ("xid", re.compile(r"XID error (?P<value>\d+) detected")),
)
_VALUE = re.compile(r"^(?:(?:\w[\w ]*?)(?:count|value)|(?:\w[\w ]*?)?(?:Temperature|Power)): (\d+)", re.IGNORECASE)


class PolicyLines:
    """Reads `dcgmi policy --reg` line by line: what was violated stands in one line, the value in the next."""

    def __init__(self) -> None:
        self._open: Violation | None = None

    def feed(self, line: str) -> Violation | None:
        """The violation that is complete with this line."""
        for kind, pattern in _VIOLATIONS:
            if (found := pattern.search(line)) is not None:
                value = found.groupdict().get("value")
                violation = Violation(kind=kind, value=int(value) if value else None, text=line.strip())
                if kind == "xid":
                    return violation
                self._open = violation
                return None
        if self._open is not None and (found := _VALUE.match(line)) is not None:
            done, self._open = self._open, None
            return msgspec.structs.replace(done, value=int(found[1]), text=f"{done.text} {line.strip()}")
        return None


class ExporterGpu(Struct, kw_only=True):
    """What dcgm-exporter shows of one GPU."""

    gpu: int
    uuid: str = ""
    values: dict[str, float] = {}


BLANK = float(1 << 62)
"""DCGM writes "no value" as numbers near the largest of 64 bits."""
_METRIC = re.compile(r"^(?P<name>DCGM_\w+)\{(?P<labels>[^}]*)\}\s+(?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def parse_exporter(page: str) -> dict[int, ExporterGpu]:
    """Read dcgm-exporter's page; GPUs by index. MIG instances are folded into their GPU."""
    found: dict[int, ExporterGpu] = {}
    for line in page.splitlines():
        if (row := _METRIC.match(line)) is None:
            continue
        labels = dict(_LABEL.findall(row["labels"]))
        if not labels.get("gpu", "").isdigit():
            continue
        gpu = found.setdefault(int(labels["gpu"]), ExporterGpu(gpu=int(labels["gpu"]), uuid=labels.get("UUID", "")))
        try:
            value = float(row["value"])
        except ValueError:
            continue
        if value < BLANK:
            gpu.values[row["name"]] = value
    return found


def _first_line(text: str) -> str:
    return next((line.strip()[:200] for line in text.splitlines() if line.strip()), "")
