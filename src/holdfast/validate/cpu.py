"""The `cpu` suite: speed, processor time that is held back, right results, memory bandwidth. A step; standard library.

Wall time alone would blame a node for its neighbours: nodes of a lab, and containers, share processors. So the time
in which others had the processor is taken out: `lost = min(run delay, wall - cpu - throttled)`, from
/proc/self/schedstat (kernel's sched-stats) and the cgroup's `cpu.stat`. What remains is this node's own speed: a
slower clock shows as less work per second of processor time, a quota as time that nobody else used either.

Time: about `Options.seconds` of processor time per measurement.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from holdfast.os.files import text_of
from holdfast.validate.registry import Options
from holdfast.validate.results import Item, Verdict

BLOCK = 1 << 16
PARTS = 5
HELD_WARN = 0.10
"""Share of its own time that a quota may hold back before it is told."""
SUM_TERMS = 20_000
COPY_BYTES = 64 << 20

KNOWN_DIGEST = "fbc6489a56b76bc5"
"""Of `computed()`: IEEE 754 double arithmetic and SHA-256 give the same bits on every machine."""
CGROUP = Path("/sys/fs/cgroup")


class Spent(Struct, frozen=True):
    """Seconds since some start."""

    wall: float
    cpu: float
    waited: float
    """Runnable, but not run."""
    throttled: float
    """Held back by a cgroup's quota."""


def spent() -> Spent:
    """Where the time of this thread has gone so far."""
    return Spent(time.perf_counter(), time.thread_time(), _run_delay_s(), _throttled_s())


def _run_delay_s() -> float:
    try:
        return int(Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _throttled_s() -> float:
    """What cgroups (version 1 or 2) held back from this process; nested ones count together."""
    total = 0.0
    for folder in cgroups():
        stat = dict(line.split() for line in text_of(folder / "cpu.stat").splitlines() if line.count(" ") == 1)
        total += int(stat.get("throttled_usec", 0)) / 1e6 + int(stat.get("throttled_time", 0)) / 1e9
    return total


def cgroups() -> list[Path]:
    """Folders of the cgroups that rule this process's processor time, of version 1 or 2."""
    found = []
    for line in text_of(Path("/proc/self/cgroup")).splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        roots = [CGROUP] if number == "0" else [CGROUP / controllers, CGROUP / "cpu", CGROUP / "cpu,cpuacct"]
        # Inside a container the path is the host's, and the container's own group is the root.
        places = [place for root in roots for place in (root / path.lstrip("/"), root)]
        found += [place for place in places if (place / "cpu.stat").exists()][:1]
    return found


def allowed(folders: Sequence[Path], processors: int) -> float:
    """Processors that may be used: those of the affinity mask, or less where a cgroup or one above it has a quota."""
    least = float(processors)
    for folder in folders:
        for place in (folder, *folder.parents):
            if place == CGROUP.parent:
                break
            words = text_of(place / "cpu.max").split()
            if len(words) != 2:
                words = [text_of(place / "cpu.cfs_quota_us"), text_of(place / "cpu.cfs_period_us")]
            if words[0].isdigit() and words[1].isdigit() and int(words[1]) > 0:
                least = min(least, int(words[0]) / int(words[1]))
    return least


class Own(Struct, frozen=True):
    """A stretch of work, with what was not this node's doing taken out."""

    rate: float
    """Units per second of own time."""
    held: float
    """Share of own time in which it was held back."""
    others: float
    """Share of wall time in which others had the processor."""


def own_time(before: Spent, after: Spent, units: float) -> Own:
    """See the module. Pure."""
    wall = after.wall - before.wall
    cpu = after.cpu - before.cpu
    throttled = after.throttled - before.throttled
    lost = min(max(0.0, after.waited - before.waited), max(0.0, wall - cpu - throttled))
    own = max(wall - lost, cpu, 1e-9)
    return Own(units / own, max(0.0, own - cpu) / own, lost / wall if wall > 0 else 0.0)


def digests(seconds: float) -> Own:
    """SHA-256 over blocks of 64 KiB for so much processor time; the unit is the megabyte."""
    block = bytes(range(256)) * (BLOCK // 256)
    before = spent()
    done = 0
    while time.thread_time() - before.cpu < seconds:
        for _ in range(16):
            hashlib.sha256(block).digest()
        done += 16
    return own_time(before, spent(), done * BLOCK / 1e6)


def sums(seed: int) -> tuple[float, ...]:
    """Sums of products of doubles made from `seed`: the same bits on every machine that computes rightly."""
    state, left, right = seed * 2 + 1, [], []
    for _ in range(SUM_TERMS):
        state = (state * 6364136223846793005 + 1442695040888963407) & 0xFFFF_FFFF_FFFF_FFFF
        left.append((state >> 11) / (1 << 53))
        right.append(1.0 / (1.0 + (state >> 40)))
    products = [a * b for a, b in zip(left, right, strict=True)]
    step = SUM_TERMS // 4
    return tuple(math.fsum(products[start : start + step]) for start in range(0, SUM_TERMS, step))


def computed(seed: int = 1) -> str:
    """A digest of `sums`: 16 hex digits."""
    return hashlib.sha256(repr(sums(seed)).encode()).hexdigest()[:16]


def copied(seconds: float) -> float:
    """GB/s that one thread copies (bytes read and written), the best of several: the least disturbed."""
    source, target = bytearray(COPY_BYTES), bytearray(COPY_BYTES)
    source[::4096] = b"\x5a" * (COPY_BYTES // 4096)
    best, begin = 0.0, time.thread_time()
    while not best or time.thread_time() - begin < seconds:
        start = time.thread_time()
        target[:] = source
        took = time.thread_time() - start
        best = max(best, 2 * COPY_BYTES / 1e9 / took) if took > 0 else best
    return best


def measure(options: Options) -> list[Item]:
    """The step."""
    parts = [digests(options.seconds / PARTS) for _ in range(PARTS)]
    rates = sorted(part.rate for part in parts)
    held = sorted(part.held for part in parts)[PARTS // 2]
    others = sorted(part.others for part in parts)[PARTS // 2]
    digest, again = computed(), computed()
    return [
        Item(
            name="cpu.allowed",
            value=allowed(cgroups(), len(os.sched_getaffinity(0))),
            unit="processors",
            better="higher",
            advice="look for a CPU quota (cgroup cpu.max or cfs_quota), a container's limit, an affinity mask",
        ),
        Item(name="cpu.rate", value=rates[PARTS // 2], unit="MB/s of SHA-256 per thread", better="higher"),
        held_item(held),
        Item(name="cpu.others", value=others, unit="of the time others had the processor"),
        correct(digest, again),
        Item(name="cpu.memory_copy", value=copied(options.seconds / 2), unit="GB/s per thread", better="higher"),
    ]


def held_item(held: float) -> Item:
    """Judge what was held back."""
    expected = f"below {HELD_WARN:g}"
    item = Item(name="cpu.held_back", value=held, unit="of its own time", better="lower", expected=expected)
    if held < HELD_WARN:
        return item
    why = f"{held:.0%} of its processor time was held back though nobody else used it"
    advice = "look for a CPU quota (cgroup cpu.max or cfs_quota), a container's CPU limit, or a stopped process"
    return item.judged(Verdict.WARN, why, advice)


def correct(digest: str, again: str) -> Item:
    """Judge results: against the known answer, and twice the same."""
    item = Item(name="cpu.correct", text=digest, same=True, expected=KNOWN_DIGEST, source="IEEE 754, FIPS 180-4")
    if digest == again == KNOWN_DIGEST:
        return item
    advice = "keep work away: silent corruption; run `holdfast check cpu-stress edac`, then have it replaced"
    if digest == again:
        return item.judged(Verdict.FAIL, "it computes wrong sums", advice)
    why = "the same computation gave two results"
    return item.judged(Verdict.FAIL, why, advice, text=f"{digest}, then {again}")
