"""Records what the base's code does: `PYTHONPATH=BASE/src python -m tests.guard.record CACHE --count N`.

`__main__` calls it with the base's code on the path. Each seed is one file of journals (the controller's, and one for
each job with a launcher); a seed whose file stands there is not run again, so an interrupted recording goes on.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from msgspec import Raw

from holdfast.sim.options import changed, draw
from holdfast.sim.run import Simulation, simulate

from .journal import Head, Line, Recorded, Tail, paths, read, seeds, write
from .replay import Replay

LAB = Path(__file__).parent / "journals"
SAY_S = 30.0


def simulated(seed: int) -> list[Recorded]:
    """The journals of one seed: the controller's, and those of launchers that wrote one."""
    kept: list[Simulation] = []
    options = changed(draw(seed), check=False)
    result = simulate(options, at_calm=kept.append)
    disks = {"": kept[0].control.disk}
    for job in [*kept[0].scheduler.gone, *kept[0].scheduler.jobs.values()]:
        if job.disk is not None:
            disks[f"/job-{str(job.key).replace('/', '-')}"] = job.disk
    if result.refused:
        raise SystemExit(f"seed {seed}: the base's own engine refused an event: {result.refused[0]}")
    return [
        Recorded(
            head=Head(
                name=f"simulated/{seed}{suffix}",
                scope="allocation" if suffix else "cluster",
                policy=options.policy,
            ),
            lines=[Line(Raw(row.payload), Raw(row.orders)) for row in disk.rows],
        )
        for suffix, disk in disks.items()
        if disk.rows
    ]


def expected(recorded: Recorded) -> tuple[Recorded, int]:
    """The journal with the orders and records of the imported code; at how many events the recorder's were others."""
    replay = Replay(recorded.head)
    middle = len(recorded.lines) // 2
    lines: list[Line] = []
    snapshot = b""
    for number, line in enumerate(recorded.lines):
        if number == middle:
            snapshot = replay.engine.snapshot()
        lines.append(Line(line.event, Raw(replay.take(line))))
    others = sum(bytes(new.orders) != bytes(old.orders) for new, old in zip(lines, recorded.lines, strict=True))
    tail = Tail(records=replay.record_lines(), middle=middle, snapshot=snapshot)
    return Recorded(head=recorded.head, lines=lines, tail=tail), others


def record_seeds(folder: Path, count: int) -> None:
    """See the module."""
    begun = said = time.monotonic()
    made = 0
    for seed in seeds(count):
        path = folder / f"{seed}.xz"
        if path.exists():
            continue
        journals = []
        for recorded in simulated(seed):
            made_of, others = expected(recorded)
            if others:
                raise SystemExit(f"{recorded.head.name}: the base does not repeat {others} of its own answers")
            journals.append(made_of)
        write(path, journals)
        made += 1
        if time.monotonic() - said > SAY_S:
            said = time.monotonic()
            print(f"recorded {made} seeds in {said - begun:.0f} s, at seed {seed}", flush=True)


def judge(source: Path, folder: Path) -> None:
    """Have the base judge journals that were recorded elsewhere: those of real clusters, and those of tests."""
    for path in paths(folder):
        if not (source / path.relative_to(folder)).exists():
            path.unlink()
    for path in paths(source):
        made = folder / path.relative_to(source)
        if made.exists() and made.stat().st_mtime > path.stat().st_mtime:
            continue
        found = [expected(one) for one in read(path)]
        write(made, [recorded for recorded, _ in found])
        others = [one.head.name for one, number in found if number]
        if others and source == LAB:
            print(f"the base orders other than the recorder did: {', '.join(others)}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cache", type=Path)
    parser.add_argument("--count", type=int, default=2000)
    given = parser.parse_args()
    record_seeds(given.cache / "simulated", given.count)
    judge(LAB, given.cache / "lab")
    judge(given.cache / "plays.events", given.cache / "plays")
