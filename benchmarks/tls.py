"""What TLS costs the controller: 1,000 agents' beats a second over kept connections, plain and over TLS in one run.

    python benchmarks/tls.py [--agents 1000] [--seconds 5] [--rounds 3] [--json]

Two controllers (each as in `controller.py`: real engine, SQLite journal, API with tokens, a process of its own) run at
once, one of them over TLS. Each round sends 1,000 beats a second to the one, then to the other; the ratio is of the
controller process's processor time, the median over the rounds. Then each is asked as often as it answers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import psutil

from controller import Line, Load, paced, serve, spread
from holdfast.adapters.certificates import issue, make_authority
from holdfast.os.tls import TlsFiles, Trust

RATE = 1000.0
KINDS = ("plain", "tls")


def made(folder: Path) -> TlsFiles:
    authority = make_authority("benchmark", now=time.time())
    server = issue(authority, "127.0.0.1", ("127.0.0.1",), now=time.time())
    for name, data in (("ca.pem", authority.cert), ("tls.crt", server.cert), ("tls.key", server.key)):
        (folder / name).write_bytes(data)
    return TlsFiles(folder / "tls.crt", folder / "tls.key")


class Agents(Load):
    """All agents of one of the two controllers."""

    async def connect(self, count: int, ca: Path | None = None) -> None:
        context = Trust(ca).context() if ca is not None else None
        loop = asyncio.get_running_loop()
        for _ in range(count):
            _, line = await loop.create_connection(Line, self.place.hostname, self.place.port, ssl=context)
            self.lines.append(line)


async def measure(folder: Path, pids: dict[str, int], options: argparse.Namespace) -> dict[str, object]:
    loads, processes = {}, {kind: psutil.Process(pid) for kind, pid in pids.items()}
    for kind in KINDS:
        while not (folder / kind / "url").exists():
            await asyncio.sleep(0.05)
        load = loads[kind] = Agents(
            (folder / kind / "url").read_text(), (folder / kind / "agent-token").read_text().strip()
        )
        begun = time.perf_counter()
        await load.connect(options.agents, folder / kind / "ca.pem" if kind == "tls" else None)
        load.connected_s = time.perf_counter() - begun
        await paced(RATE, options.agents / RATE, lambda i, load=load: load.beat(i % options.agents))
        load.took["beat"].clear()

    def cpu(kind: str) -> float:
        used = processes[kind].cpu_times()
        return used.user + used.system

    spent: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(options.rounds):
        for kind in KINDS:
            used = cpu(kind)
            sent = await paced(RATE, options.seconds, lambda i, kind=kind: loads[kind].beat(i % options.agents))
            spent[kind].append((cpu(kind) - used) / sent * 1e3)
    most: dict[str, list[float]] = {kind: [] for kind in KINDS}
    latency = {kind: spread(loads[kind].took["beat"]) for kind in KINDS}
    for _ in range(options.rounds):
        for kind in KINDS:
            most[kind].append(await as_often(loads[kind], 64, options.seconds))
    found: dict[str, object] = {
        kind: {"cpu_ms_per_beat": statistics.median(spent[kind]), "beat": latency[kind],
               "most_beats_per_s": statistics.median(most[kind]), "connect_all_s": loads[kind].connected_s}
        for kind in KINDS
    }  # fmt: skip
    pairs = zip(spent["tls"], spent["plain"], strict=True)
    found["cpu_ratio_at_1000_beats_per_s"] = statistics.median(tls / plain for tls, plain in pairs)
    pairs = zip(most["tls"], most["plain"], strict=True)
    found["most_beats_ratio"] = statistics.median(tls / plain for tls, plain in pairs)
    return found


async def as_often(load: Agents, lines: int, seconds: float) -> float:
    until, sent = time.perf_counter() + seconds, 0

    async def one(number: int) -> None:
        nonlocal sent
        while time.perf_counter() < until:
            await load.beat(number)
            sent += 1

    await asyncio.gather(*(one(number) for number in range(lines)))
    return sent / seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        tls = made(options.serve) if options.serve.name == "tls" else None
        asyncio.run(serve(options.serve, options.agents, tls))
        return 0
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as ending:
        folder, pids = Path(place), {}
        for kind in KINDS:
            (folder / kind).mkdir()
            process = psutil.Popen(
                [sys.executable, __file__, "--serve", str(folder / kind), "--agents", str(options.agents)]
            )
            pids[kind] = process.pid
            ending.callback(process.kill)
        found = asyncio.run(measure(folder, pids, options))
    print(json.dumps(found, indent=None if options.json else 2, default=float))
    return 0


if __name__ == "__main__":
    sys.exit(main())
