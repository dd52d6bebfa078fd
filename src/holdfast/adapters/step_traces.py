"""Recordings of steps as people have them: CSV, JSON, JSON lines and Parquet tables, and PyTorch profiler traces.

`holdfast stragglers` reads through this. Compression (.gz, .zst) is told by a file's first bytes, the form by what it
holds. A table is given row by row with the names that `detect.straggler.record` knows; a profiler trace becomes one row
per step.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from holdfast.adapters.log_files import STDIN, read_chunks
from holdfast.errors import NotFoundError, UserError

NAMES = {
    "step": ("step", "iteration", "iter", "global_step"),
    "rank": ("rank", "global_rank"),
    "optype": ("optype", "op_type", "op"),
    "duration": ("duration", "dur"),
    "step_s": ("step_s", "step_time", "step_time_s", "time_s", "elapsed_s"),
    "wait_s": ("wait_s", "comm_s", "collective_s"),
    "stage": ("stage", "pp_rank", "pipeline_stage"),
    "node": ("node", "host", "hostname", "node_name"),
}
"""What a column means -> the headings it may have."""
_HEADINGS = {heading: name for name, headings in NAMES.items() for heading in headings}
_WHOLE = ("step", "rank", "stage")
_SECONDS = ("duration", "step_s", "wait_s")
_PARQUET = b"PAR1"
_PROFILER_STEP = re.compile(r"ProfilerStep#(\d+)")
_COLLECTIVE = re.compile(r"\A(?:nccl|rccl|gloo:|mpi:|c10d::|hccl)", re.IGNORECASE)
JSON_MAX = 2 << 30

Row = Mapping[str, Any]


def read_rows(path: str) -> Iterator[Row]:
    """The rows of one recording, with `step` and `rank` and either `optype` and `duration` or `step_s` (and `wait_s`).

    Raises:
        NotFoundError: no such file.
        UserError: it is none of the forms, lacks a column, or a cell is no number; the message names file and row.
    """
    if path != STDIN and not Path(path).exists():
        raise NotFoundError(f"{path}: no such file")
    if path != STDIN and Path(path).is_dir():
        raise UserError(f"{path}: is a folder; name the recordings in it")
    if _is_parquet(path):
        yield from _checked(path, _parquet(path))
        return
    chunks = read_chunks(path)
    head = next(chunks, b"")
    first = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    if not first:
        raise UserError(f"{path}: is empty")
    whole = chain([head], chunks)
    if first == b"{" and _is_lines(head):
        yield from _checked(path, _json_lines(path, whole))
    elif first in {b"{", b"["}:
        yield from _json(path, whole)
    else:
        yield from _checked(path, _csv(path, whole))


def _is_parquet(path: str) -> bool:
    if path == STDIN:
        return False
    try:
        with Path(path).open("rb") as file:
            return file.read(4) == _PARQUET
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error


def _is_lines(head: bytes) -> bool:
    """Whether the first line is a JSON object by itself."""
    try:
        return isinstance(json.loads(head.split(b"\n", 1)[0]), dict) and b'"traceEvents"' not in head[:4096]
    except ValueError:
        return False


def _parquet(path: str) -> Iterator[Row]:
    import pyarrow.parquet  # noqa: PLC0415 - an extra, for who has such files

    try:
        file = pyarrow.parquet.ParquetFile(path)
        columns = [name for name in file.schema_arrow.names if name in _HEADINGS]
        for batch in file.iter_batches(columns=columns):
            yield from batch.to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"{path}: is no whole Parquet file: {error}") from error


def _lines(path: str, chunks: Iterable[bytes]) -> Iterator[str]:
    kept = b""
    for chunk in chunks:
        *whole, kept = (kept + chunk).split(b"\n")
        for line in whole:
            yield _decoded(path, line)
    if kept:
        yield _decoded(path, kept)


def _decoded(path: str, line: bytes) -> str:
    try:
        return line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is no text and no Parquet file; give a CSV, JSON, JSON lines or Parquet") from error


def _csv(path: str, chunks: Iterable[bytes]) -> Iterator[Row]:
    lines = _lines(path, chunks)
    head = next(lines)
    mark = max(",;\t", key=head.count)
    headings = [heading.strip() for heading in next(csv.reader([head], delimiter=mark))]
    for cells in csv.reader(lines, delimiter=mark):
        if cells:
            yield dict(zip(headings, cells, strict=False))


def _json_lines(path: str, chunks: Iterable[bytes]) -> Iterator[Row]:
    for number, line in enumerate(_lines(path, chunks), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"{path}:{number}: is no JSON: {error}") from error
        if not isinstance(row, dict):
            raise UserError(f"{path}:{number}: is no JSON object")
        yield row


def _json(path: str, chunks: Iterable[bytes]) -> Iterator[Row]:
    text = io.BytesIO()
    for chunk in chunks:
        text.write(chunk)
        if text.tell() > JSON_MAX:
            raise UserError(f"{path}: is JSON of more than 2 GiB; give JSON lines or Parquet, which are read in pieces")
    try:
        told = json.loads(text.getvalue())
    except ValueError as error:
        raise UserError(f"{path}: is no JSON: {error}") from error
    if isinstance(told, dict) and isinstance(told.get("traceEvents"), list):
        yield from _profiled(path, told)
    elif isinstance(told, list) and told and all(isinstance(row, dict) for row in told):
        yield from _checked(path, told)
    else:
        raise UserError(f"{path}: is neither a list of rows nor a PyTorch profiler trace (`traceEvents`)")


def _checked(path: str, rows: Iterable[Row]) -> Iterator[Row]:
    """Rows by the known names, their cells as numbers."""
    for number, raw in enumerate(rows, 1):
        row = {_HEADINGS[key]: cell for key, cell in raw.items() if key in _HEADINGS and cell not in {None, ""}}
        for name in ("step", "rank"):
            if name not in row:
                raise UserError(f"{path}: row {number} has no `{name}` (headings: {', '.join(map(str, raw))})")
        if "step_s" not in row and not ("optype" in row and "duration" in row):
            raise UserError(
                f"{path}: row {number} has neither `step_s` nor `optype` and `duration` (headings: "
                f"{', '.join(map(str, raw))})"
            )
        for name in (*_WHOLE, *_SECONDS):
            if name in row:
                row[name] = _number(path, number, name, row[name])
        yield row


def _number(path: str, number: int, name: str, cell: object) -> float:
    try:
        value = float(cell)  # type: ignore[arg-type] # what is no number raises
    except (TypeError, ValueError):
        value = float("nan")
    whole = name in _WHOLE
    if not 0 <= value < float("inf") or (whole and value != int(value)):
        kind = "a whole number from 0" if whole else "a duration of 0 or more"
        raise UserError(f"{path}: row {number}: {name} is {cell!r}, it must be {kind}")
    return int(value) if whole else value


def _profiled(path: str, trace: Mapping[str, Any]) -> Iterator[Row]:
    """One row per step of a `torch.profiler` trace: its length, and the time in collectives that no computing covers.

    A step is as long as its `ProfilerStep#N` on the GPU's side where there is one, else on the CPU's. Times in a trace
    are microseconds.
    """
    info = trace.get("distributedInfo")
    rank = info.get("rank") if isinstance(info, dict) else None
    if not isinstance(rank, int):
        found = re.search(r"rank[-_]?(\d+)", Path(path).name, re.IGNORECASE)
        if found is None:
            raise UserError(f"{path}: tells no rank: neither `distributedInfo` in it nor its name (`rank3.json`) does")
        rank = int(found.group(1))
    events = [e for e in trace["traceEvents"] if isinstance(e, dict) and e.get("ph") == "X" and "dur" in e]
    on_gpu = any(e.get("cat") == "kernel" for e in events)
    steps: dict[int, tuple[float, float]] = {}
    for event in events:
        named = _PROFILER_STEP.fullmatch(str(event.get("name", "")))
        if named and (event.get("cat") == "gpu_user_annotation" or int(named.group(1)) not in steps):
            begin = float(event["ts"])
            steps[int(named.group(1))] = (begin, begin + float(event["dur"]))
    if not steps:
        raise UserError(f"{path}: has no steps (`ProfilerStep#N`): profile with a `schedule` and call `step()`")
    work = [e for e in events if (e.get("cat") in {"kernel", "gpu_memcpy", "gpu_memset"}) == on_gpu]
    waits = _spans(e for e in work if _COLLECTIVE.search(str(e.get("name", ""))))
    computing = _spans(e for e in work if on_gpu and not _COLLECTIVE.search(str(e.get("name", ""))))
    for step, (begin, end) in sorted(steps.items()):
        covered = _overlap(waits, computing, begin, end)
        wait_us = sum(max(0.0, min(end, stop) - max(begin, start)) for start, stop in waits) - covered
        yield {"step": step, "rank": rank, "step_s": (end - begin) / 1e6, "wait_s": wait_us / 1e6}


def _spans(events: Iterable[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """When any of the events was going on: spans that do not touch, in order."""
    joined: list[tuple[float, float]] = []
    for start, stop in sorted((float(e["ts"]), float(e["ts"]) + float(e["dur"])) for e in events):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], stop))
        else:
            joined.append((start, stop))
    return joined


def _overlap(left: list[tuple[float, float]], right: list[tuple[float, float]], begin: float, end: float) -> float:
    """How long both were going on between two moments."""
    total = 0.0
    at = 0
    for start, stop in left:
        while at < len(right) and right[at][1] <= start:
            at += 1
        here = at
        while here < len(right) and right[here][0] < stop:
            total += max(0.0, min(stop, right[here][1], end) - max(start, right[here][0], begin))
            here += 1
    return total
