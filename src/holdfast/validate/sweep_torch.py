"""A sweep of collectives by torch.distributed: all-reduce, all-gather, reduce-scatter over sizes. A step on each rank.

Needs no build: gloo on processors, NCCL on GPUs. Sums are of small whole numbers, exact in every type, so every wrong
element is seen. Bus bandwidths are counted as nccl-tests do (doc/PERFORMANCE.md there): all-reduce 2(n-1)/n, the others
(n-1)/n of the bytes. Time: seconds; the group's own time-out is below the step's limit, so a dead peer is told, and so
is the time that the calls may take in all: before each one the ranks agree whether it is over, and end together.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from holdfast.validate.registry import RESENT, WITHOUT_GPU, Options, limit_of
from holdfast.validate.results import Item, failed
from holdfast.validate.step import Tell

GROUP_S = 150.0
CALLS_SHARE = 0.5
"""Of the step's limit: so long may the calls take, and so long does one wait for a peer."""
QUICK_SIZES, DEEP_SIZES = (1 << 16, 1 << 20, 1 << 23), (1 << 16, 1 << 20, 1 << 24, 1 << 27, 1 << 30)
"""Bytes of the whole message."""
WARM, REPEATS = 1, 3
SEGMENTS_MIN = 200
SNMP = Path("/proc/net/snmp")
WIDTH = 4
"""Bytes of a float32."""


def tcp_counts() -> tuple[int, int]:
    """TCP segments that this host (this network namespace) has sent, and sent again; zeros where nobody counts."""
    try:
        lines = [line.split() for line in SNMP.read_text().splitlines() if line.startswith("Tcp:")]
        counts = dict(zip(lines[0], lines[1], strict=True))
        return int(counts["OutSegs"]), int(counts["RetransSegs"])
    except (OSError, ValueError, LookupError):
        return 0, 0


def resent(before: tuple[int, int], after: tuple[int, int]) -> float:
    """Share of the segments between two counts that was sent again; 0.0 of few."""
    sent, again = after[0] - before[0], after[1] - before[1]
    return again / sent if sent >= SEGMENTS_MIN else 0.0


class _SlowError(Exception):
    """The calls took too long; said by all ranks at the same call."""


class _Clock:
    """Whether the calls may go on, as all ranks see it."""

    def __init__(self, device: torch.device, limit_s: float) -> None:
        self.device = device
        self.limit_s = limit_s
        self.began = time.perf_counter()
        self.what = ""

    def look(self) -> None:
        """A collective of its own. Raises _SlowError on all ranks when one is late."""
        late = time.perf_counter() - self.began > self.limit_s
        flag = torch.tensor([float(late)], device=self.device)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        if flag.item():
            raise _SlowError(f"too slow: in {self.limit_s:g} s it came to {self.what}")


def sweep(options: Options, tell: Tell) -> list[Item]:
    """The step."""
    torch.set_num_threads(1)
    calls_s = CALLS_SHARE * limit_of("sweep", options)
    limit = dt.timedelta(seconds=min(GROUP_S, calls_s))
    first = not options.peer
    host = options.listen if first else options.peer
    store = dist.TCPStore(host, options.port, options.world, is_master=first, timeout=limit, wait_for_workers=False)  # type: ignore[attr-defined]
    if first:
        tell({"port": float(store.port)})
    own = device_of(options, torch.cuda.device_count() if torch.cuda.is_available() else 0)
    on_gpus = ranks_with_gpu(store, own, options.world)
    device = own if on_gpus == options.world else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=options.rank, world_size=options.world, timeout=limit)
    before = tcp_counts()
    items = _measure(options, _Clock(device, calls_s), backend)
    if on_gpus and own.type == "cpu":
        why = f"PyTorch sees no GPU for its rank, while {on_gpus} of {options.world} ranks have one"
        items.append(failed(WITHOUT_GPU, why, "compare `holdfast validate --suite pytorch` of this node and another"))
    tell({RESENT: resent(before, tcp_counts())})
    dist.barrier()  # rank 0 holds the store: it may not leave first
    return items


def device_of(options: Options, gpus: int) -> torch.device:
    """The rank's own GPU of those that its node has; the processor where ranks would share one, which NCCL refuses."""
    if options.device == "cpu" or options.gpus > gpus:
        return torch.device("cpu")
    return torch.device("cuda", options.gpu)


def ranks_with_gpu(store: Any, own: torch.device, world: int) -> int:
    """How many ranks found a GPU; every rank gets the same answer once all have asked.

    Without it some ranks would wait in NCCL for others that wait in gloo, until the time limit, and no node be named.
    """
    store.add("with GPU", int(own.type == "cuda"))
    if store.add("asked", 1) == world:
        store.set("with GPU in all", str(store.add("with GPU", 0)))
    return int(store.get("with GPU in all"))


def sizes(options: Options) -> tuple[int, ...]:
    """Bytes of the messages, the smallest one in any case."""
    found = DEEP_SIZES if options.deep else QUICK_SIZES
    return tuple(size for size in found if size <= (options.size_max or size)) or found[:1]


def _measure(options: Options, clock: _Clock, backend: str) -> list[Item]:
    items: list[Item] = []
    wrong: dict[str, int] = {}
    for name, run in (("all_reduce", _all_reduce), ("all_gather", _all_gather), ("reduce_scatter", _reduce_scatter)):
        best = 0.0
        for size in sizes(options):
            clock.what = f"{name} of {size} bytes"
            try:
                rate, differing = run(size // WIDTH // options.world * options.world, options, clock)
            except _SlowError as error:
                return [*items, failed("nccl.sweep.slow", str(error), "test it in pairs: `--suite network,nccl`")]
            best = max(best, rate)
            wrong[name] = wrong.get(name, 0) + differing
        unit = f"GB/s bus bandwidth, {backend}, {options.world} ranks"
        items.append(Item(name=f"nccl.sweep.{name}", value=best, unit=unit, better="higher"))
    bad = {name: count for name, count in wrong.items() if count}
    if bad:
        why = "wrong sums: " + ", ".join(f"{count} elements of {name}" for name, count in bad.items())
        items.append(failed("nccl.sweep.wrong", why, "test it in pairs: more nodes"))
    return items


def _timed(call: Callable[[], object], clock: _Clock) -> float:
    """Seconds of the fastest of several calls."""
    took = []
    device = clock.device
    for _ in range(WARM + REPEATS):
        clock.look()
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        took.append(time.perf_counter() - start)
    return min(took[WARM:])


def _mine(count: int, rank: int, device: torch.device) -> torch.Tensor:
    """Whole numbers that differ by place and rank: their sums are exact in float32."""
    return (torch.arange(count, device=device, dtype=torch.float32) % 509) + rank


def _summed(count: int, options: Options, device: torch.device) -> torch.Tensor:
    """The sum of every rank's `_mine`."""
    return _mine(count, 0, device) * options.world + options.world * (options.world - 1) / 2


def _differences(found: torch.Tensor, expected: torch.Tensor) -> int:
    return int((found != expected).sum().item())


def _all_reduce(count: int, options: Options, clock: _Clock) -> tuple[float, int]:
    device = clock.device
    world = options.world
    data = _mine(count, options.rank, device)
    dist.all_reduce(data)
    wrong = _differences(data, _summed(count, options, device))
    took = _timed(lambda: dist.all_reduce(data), clock)
    return count * WIDTH * 2 * (world - 1) / world / took / 1e9, wrong


def _all_gather(count: int, options: Options, clock: _Clock) -> tuple[float, int]:
    device = clock.device
    world, part = options.world, count // options.world
    mine = _mine(part, options.rank, device)
    parts = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(parts, mine)
    wrong = sum(_differences(found, _mine(part, rank, device)) for rank, found in enumerate(parts))
    took = _timed(lambda: dist.all_gather(parts, mine), clock)
    return count * WIDTH * (world - 1) / world / took / 1e9, wrong


def _reduce_scatter(count: int, options: Options, clock: _Clock) -> tuple[float, int]:
    device = clock.device
    world, part = options.world, count // options.world
    whole = _mine(count, options.rank, device)
    mine = torch.empty(part, device=device)
    dist.reduce_scatter(mine, list(torch.split(whole, part)))
    wrong = _differences(mine, _summed(count, options, device)[options.rank * part : (options.rank + 1) * part])
    took = _timed(lambda: dist.reduce_scatter(mine, list(torch.split(whole, part))), clock)
    return count * WIDTH * (world - 1) / world / took / 1e9, wrong


sweep.tells = True  # type: ignore[attr-defined]
