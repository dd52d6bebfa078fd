"""What nccl-tests and perftest print, as values. Pure; tried on recorded outputs of several versions.

nccl-tests' table has had several shapes: with and without `root`, with `error` in place of `#wrong`, a label of mpirun
before each line, further columns at the end (RCCL's algorithm). Columns are therefore found by the heading. Its JSON
(`-J`, version 2 of its form) writes booleans as the strings "true" and "false".
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Struct


class Size(Struct, frozen=True, kw_only=True):
    """One message size: times in us, bandwidths in GB/s, the better of out of place and in place."""

    size: int
    time_us: float
    algbw: float
    busbw: float
    wrong: int | None = None
    """Elements that were wrong; None: it was not checked."""


class Collective(Struct, frozen=True, kw_only=True):
    """One program of nccl-tests."""

    sizes: tuple[Size, ...] = ()
    average: float | None = None
    """Its own average of the bus bandwidths, GB/s."""
    out_of_bounds: int | None = None
    devices: tuple[str, ...] = ()
    """`host GPU name` of each rank."""
    error: str = ""
    """Why there is no figure."""

    @property
    def wrong(self) -> int:
        """Wrong elements, of all sizes."""
        return max(sum(one.wrong or 0 for one in self.sizes), self.out_of_bounds or 0)

    @property
    def best(self) -> Size | None:
        """The size with the highest bus bandwidth."""
        return max(self.sizes, key=lambda one: one.busbw, default=None)


_LABEL = re.compile(r"^\s*(?:\[\d+,\d+\]<std(?:out|err)>:|\d+: |\S+: (?=\s*#|\s*\d+\s+\d+\s))")
_DEVICE = re.compile(r"^#?\s*Rank\s+\d+.*?\bon\s+(?P<host>\S+)\s+device\s+\d+\s+\[[^\]]*\]\s+(?P<name>.+?)\s*$")
_ROW = re.compile(r"^\s*\d+\s+\d+\s")
_AVERAGE = re.compile(r"Avg bus bandwidth\s*:\s*([\d.]+)")
_BOUNDS = re.compile(r"Out of bounds values\s*:\s*(\d+)")
_TROUBLE = re.compile(
    r"(?i)(\bnccl\b.*\b(error|failure|failed)\b|test failure|cuda failure|invalid number of gpus|unhandled|mpi_abort|"
    r"error:)"
)


def parse_nccl_table(out: str, err: str = "") -> Collective:
    """Read what a program of nccl-tests (or RCCL's) prints."""
    lines = [_LABEL.sub("", line) for line in out.splitlines()]
    names: list[str] = []
    sizes: list[Size] = []
    for line in lines:
        words = line.lstrip("# ").split()
        if words[:2] == ["size", "count"]:
            names = words
        elif names and _ROW.match(line) and (row := _row(names, line.split())) is not None:
            sizes.append(row)
    average, bounds = _AVERAGE.search(out), _BOUNDS.search(out)
    devices = tuple(f"{m['host']} {m['name']}" for line in lines if (m := _DEVICE.match(line.strip())) is not None)
    error = ""
    if not sizes:
        said = [line.strip() for line in f"{out}\n{err}".splitlines() if _TROUBLE.search(line)]
        rest = [line.strip() for line in f"{err}\n{out}".splitlines() if line.strip() and not line.startswith("#")]
        error = (said or rest or ["it printed no figures"])[0][:300]
    return Collective(
        sizes=tuple(sizes),
        average=float(average.group(1)) if average else None,
        out_of_bounds=int(bounds.group(1)) if bounds else None,
        devices=devices,
        error=error,
    )


def _row(names: list[str], words: list[str]) -> Size | None:
    """A row by the heading's columns. `busbw` stands twice: out of place, in place."""
    at = [index for index, name in enumerate(names) if name == "busbw"]
    if not at or len(words) <= at[-1]:
        return None
    found = []
    for index in at:
        try:
            time_us, algbw, busbw = (float(word) for word in words[index - 2 : index + 1])
        except ValueError:
            return None
        checked = index + 1 < len(names) and index + 1 < len(words) and names[index + 1] in {"#wrong", "wrong"}
        wrong = _count(words[index + 1]) if checked else None
        found.append((busbw, algbw, time_us, wrong))
    busbw, algbw, time_us, _ = max(found, key=lambda one: one[0])
    told = [wrong for *_, wrong in found if wrong is not None]
    return Size(size=int(words[0]), time_us=time_us, algbw=algbw, busbw=busbw, wrong=sum(told) if told else None)


def _count(word: str) -> int | None:
    try:
        return int(float(word))
    except ValueError:
        return None


def parse_nccl_json(data: bytes) -> Collective:
    """Read the file that `-J` names."""
    try:
        raw: dict[str, Any] = msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        return Collective(error=f"its JSON is cut off or wrong: {error}")
    sizes = []
    for row in raw.get("results") or ():
        ways = [way for key in ("out_of_place", "in_place") if isinstance(way := row.get(key), dict)]
        if not ways:
            continue
        best = max(ways, key=lambda way: _figure(way.get("bus_bw")))
        told = [_figure(way["nwrong"]) for way in ways if isinstance(way.get("nwrong"), int | float)]
        sizes.append(
            Size(
                size=int(row.get("size", 0)),
                time_us=_figure(best.get("time", best.get("cpu_time"))),
                algbw=_figure(best.get("alg_bw")),
                busbw=_figure(best.get("bus_bw")),
                wrong=int(sum(told)) if told else None,
            )
        )
    average = raw.get("average_bus_bandwidth") or {}
    bounds = raw.get("out_of_bounds") or {}
    listed = raw.get("devices") or (raw.get("config") or {}).get("devices") or ()
    errors = [str(one) for one in raw.get("errors") or () if one]
    return Collective(
        sizes=tuple(sizes),
        average=_figure(average.get("bandwidth")) if average else None,
        out_of_bounds=int(_figure(bounds.get("count"))) if bounds else None,
        devices=tuple(f"{one.get('hostname', '')} {one.get('device_info', '')}" for one in listed),
        error="" if sizes else (errors or ["it wrote no results"])[0],
    )


def _figure(value: object) -> float:
    """A number; its "nan" and null are 0."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


class Perftest(Struct, frozen=True, kw_only=True):
    """What `ib_write_bw` measured: Gb/s by message size."""

    gbits: dict[int, float] = {}
    error: str = ""


_PERF_HEAD = re.compile(r"#bytes\s+#iterations\s+BW peak\[(?P<unit>[^\]]+)\]")
_PERF_ROW = re.compile(r"^\s*(?P<size>\d+)\s+\d+\s+[\d.]+\s+(?P<average>[\d.]+)")
_PERF_UNITS = {"Gb/sec": 1.0, "MB/sec": 8 * 1.048576e-3, "MiB/sec": 8 * 1.048576e-3}
"""perftest's MB is 2**20 bytes unless it is told otherwise."""


def parse_perftest(out: str, err: str = "") -> Perftest:
    """Read the table of ib_write_bw, ib_read_bw or ib_send_bw: the average column (the peak is 0 with `-D`)."""
    unit, found = 0.0, {}
    for line in out.splitlines():
        if (head := _PERF_HEAD.search(line)) is not None:
            unit = _PERF_UNITS.get(head["unit"], 0.0)
        elif unit and (row := _PERF_ROW.match(line)) is not None:
            found[int(row["size"])] = round(float(row["average"]) * unit, 3)
    if found:
        return Perftest(gbits=found)
    said = [
        line.strip() for line in f"{err}\n{out}".splitlines() if line.strip() and not line.startswith(("-", "*", " "))
    ]
    return Perftest(error=(said or ["it printed no figures"])[-1][:300])
