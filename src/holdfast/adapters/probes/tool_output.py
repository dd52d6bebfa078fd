"""What fi_info, fi_pingpong, stress-ng, `systemctl is-active` and `chronyc -c tracking` print, as values. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct


class FabricEndpoint(Struct, frozen=True):
    """One entry of `fi_info`."""

    provider: str
    domain: str = ""


def parse_fi_info(out: str) -> tuple[FabricEndpoint, ...]:
    """Entries in order. `fi_info: -61` (no data available) and the like give none."""
    found: list[dict[str, str]] = []
    for line in out.splitlines():
        name, mark, value = line.partition(":")
        if mark and name.strip() == "provider":
            found.append({"provider": value.strip()})
        elif mark and found and name.strip() == "domain":
            found[-1]["domain"] = value.strip()
    return tuple(FabricEndpoint(**one) for one in found)


def domains(endpoints: Iterable[FabricEndpoint]) -> set[str]:
    """Devices that these entries stand for; each has one for reliable and one for plain datagrams."""
    return {one.domain.removesuffix("-rdm").removesuffix("-dgrm") for one in endpoints}


class PingPong(Struct, frozen=True):
    """What `fi_pingpong` measured: MB/s and microseconds per transfer by message size in bytes."""

    rates: dict[int, float] = {}
    latencies: dict[int, float] = {}
    error: str = ""


_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_PINGPONG = re.compile(
    r"^(?P<size>\d+)(?P<unit>[kmg]?)\s+\d+\s+=\d+\s+\S+\s+[\d.]+s\s+(?P<rate>[\d.]+)\s+(?P<latency>[\d.]+)"
)


def parse_pingpong(out: str, err: str = "") -> PingPong:
    """Read the client's table."""
    rates: dict[int, float] = {}
    latencies: dict[int, float] = {}
    for line in out.splitlines():
        if (row := _PINGPONG.match(line.strip())) is not None:
            size = int(row["size"]) * _UNITS.get(row["unit"], 1)
            rates[size], latencies[size] = float(row["rate"]), float(row["latency"])
    said = (
        ""
        if rates
        else next((line.strip()[:200] for line in f"{out}\n{err}".splitlines() if line.strip()), "no answer")
    )
    return PingPong(rates, latencies, said)


class Stress(Struct, frozen=True):
    """How `stress-ng` ended: lines about failures, and operations per second by stressor."""

    failures: tuple[str, ...] = ()
    rates: dict[str, float] = {}
    finished: bool = False


_STRESS_LINE = re.compile(r"^stress-ng: (?P<level>fail|error|info|metrc|metrics|warn)\w*:\s+\[\d+\]\s+(?P<text>.*)$")
_STRESS_METRIC = re.compile(r"^(?P<name>[a-z][\w-]*)\s+\d+\s+[\d.]+\s+[\d.]+\s+[\d.]+\s+(?P<rate>[\d.]+)")


def parse_stress(out: str) -> Stress:
    """Read the log of `stress-ng --verify --metrics-brief` (it may go to standard error)."""
    failures, rates, finished = [], {}, False
    for line in out.splitlines():
        if (row := _STRESS_LINE.match(line.strip())) is None:
            continue
        text = row["text"].strip()
        if row["level"] in {"fail", "error"}:
            failures.append(text[:200])
        elif row["level"].startswith("metr") and (metric := _STRESS_METRIC.match(text)) is not None:
            rates[metric["name"]] = float(metric["rate"])
        elif "successful run completed" in text:
            finished = True
    return Stress(tuple(failures), rates, finished)


def parse_active(names: tuple[str, ...], out: str) -> dict[str, str]:
    """`systemctl is-active A B`: one word per unit, in order."""
    words = [line.strip() for line in out.splitlines() if line.strip()]
    return dict(zip(names, words, strict=False))


class Tracking(Struct, frozen=True):
    """What chrony says of the clock; `offset_s` of the system clock from its reference."""

    source: str
    offset_s: float
    leap: str
    """`Normal`, `Not synchronised`, ..."""


def parse_tracking(out: str) -> Tracking | None:
    """`chronyc -c tracking`: fields by commas; the fifth is the offset, the last the leap status."""
    fields = out.strip().split(",")
    if len(fields) < 14:
        return None
    try:
        return Tracking(fields[1] or fields[0], float(fields[4]), fields[13].strip())
    except ValueError:
        return None
