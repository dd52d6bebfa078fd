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
    """One message size in bytes: bandwidth in GB/s, the better of out of place and in place."""

    size: int
    busbw: float
    wrong: int | None = None
    """Elements that were wrong; None: it was not checked."""


class Collective(Struct, frozen=True, kw_only=True):
    """One program of nccl-tests."""

    sizes: tuple[Size, ...] = ()
    out_of_bounds: int = 0
    error: str = ""
    """Why there is no figure."""

    @property
    def wrong(self) -> int:
        """Wrong elements, of all sizes."""
        return max(sum(one.wrong or 0 for one in self.sizes), self.out_of_bounds)

    @property
    def best(self) -> Size | None:
        """The size with the highest bus bandwidth."""
        return max(self.sizes, key=lambda one: one.busbw, default=None)


_LABEL = re.compile(r"^\s*(?:\[\d+,\d+\]<std(?:out|err)>:|\d+: |\S+: (?=\s*#|\s*\d+\s+\d+\s))")
_ROW = re.compile(r"^\s*\d+\s+\d+\s")
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
    bounds = _BOUNDS.search(out)
    error = ""
    if not sizes:
        said = [line.strip() for line in f"{out}\n{err}".splitlines() if _TROUBLE.search(line)]
        rest = [line.strip() for line in f"{err}\n{out}".splitlines() if line.strip() and not line.startswith("#")]
        error = (said or rest or ["it printed no figures"])[0][:300]
    return Collective(sizes=tuple(sizes), out_of_bounds=int(bounds.group(1)) if bounds else 0, error=error)


def _row(names: list[str], words: list[str]) -> Size | None:
    """A row by the heading's columns. `busbw` stands twice: out of place, in place."""
    at = [index for index, name in enumerate(names) if name == "busbw"]
    if not at or len(words) <= at[-1]:
        return None
    checked = [i + 1 for i in at if i + 1 < min(len(names), len(words)) and names[i + 1] in {"#wrong", "wrong"}]
    told = [wrong for i in checked if (wrong := _count(words[i])) is not None]
    try:
        best = max(float(words[i]) for i in at)
    except ValueError:
        return None
    return Size(size=int(words[0]), busbw=best, wrong=sum(told) if told else None)


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
        told = [_figure(way["nwrong"]) for way in ways if isinstance(way.get("nwrong"), int | float)]
        sizes.append(
            Size(
                size=int(row.get("size", 0)),
                busbw=max(_figure(way.get("bus_bw")) for way in ways),
                wrong=int(sum(told)) if told else None,
            )
        )
    bounds = raw.get("out_of_bounds") or {}
    errors = [str(one) for one in raw.get("errors") or () if one]
    return Collective(
        sizes=tuple(sizes),
        out_of_bounds=int(_figure(bounds.get("count"))),
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
