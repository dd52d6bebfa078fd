"""How fast the whole catalogue reads text, beside Python `re`, google-re2's Set and `grep -E -f` with the same rules.

    python benchmarks/matching.py [--gigabytes 1] [--turns 5] [--explain] [--quick] [--json]

Three texts: prose in which no line matches, a training job's output, mostly progress lines (Megatron-LM, torchtitan,
HF Trainer) with other chatter, and a flood in which each line is a warning of NCCL that a rule knows. Rates are
gigabytes a second of one core's processor time. Whoever shares the core's caches and clock takes up to half of it,
so each rate is taken several times in turns: the quickest is what the code does by itself and is held against what is
wanted, the median and the slowest stand beside it. Text is in memory, except for `holdfast explain`.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import hyperscan

from holdfast.adapters.catalogue_files import read_catalogue, read_matcher
from holdfast.detect.catalogue import UNNAMED, StreamKind
from holdfast.detect.database import hits
from holdfast.detect.matcher import Matcher, StreamSource

CHUNK = 1 << 20
SECOND = 1_740_830_000.0


def prose(megabytes: int) -> bytes:
    """Lines of made-up words: none is a rule's."""
    rng = random.Random(7)
    words = ["".join(rng.choices("etaoinshrdlucmfwygpbvk", k=rng.randint(2, 9))) for _ in range(5000)]
    lines: list[str] = []
    size = 0
    while size < megabytes << 20:
        line = " ".join(rng.choices(words, k=rng.randint(6, 18)))
        lines.append(line)
        size += len(line) + 1
    return ("\n".join(lines) + "\n").encode()


def training(megabytes: int) -> bytes:
    """A job's output: 90 % progress lines, the rest timers and chatter."""
    lines: list[str] = []
    size = i = 0
    while size < megabytes << 20:
        i += 1
        kind = i % 20
        if kind < 13:
            line = f"[2026-05-27 07:58:{i % 60:02d}.261551] iteration {i:8d}/  500000 | consumed samples: {i * 1024:12d} | elapsed time per iteration (ms): {5000 + i % 97}.3 | learning rate: 1.0E-04 | global batch size:  1024 | lm loss: 2.5{i % 99:02d}000E+00 | loss scale: 1.0 | grad norm: 0.{i % 9}12 | number of skipped iterations:   0 | number of nan iterations:   0 |"
        elif kind < 16:
            line = f"[rank0]:[titan] 2026-05-18 16:07:39,051 - root - INFO - step: {i}  loss:  2.91027  grad_norm:  0.5926  memory:  9.46GiB(64.99%)  tps: 7,094  tflops: 0.51  mfu: 0.16%"
        elif kind < 18:
            line = f"{{'loss': 2.9{i % 99:02d}3, 'grad_norm': 1.4142, 'learning_rate': 4.999641867738336e-05, 'epoch': 0.02}}"
        elif kind < 19:
            line = "[2026-05-27 07:58:10.261551] time (ms) | forward-backward: 123.4 | optimizer: 12.3 | batch-generator: 1.2"
        else:
            line = f"INFO data loader: shard {i} of the training set is being read ahead"
        lines.append(line)
        size += len(line) + 1
    return ("\n".join(lines) + "\n").encode()


def warnings(megabytes: int) -> bytes:
    """A flood: each line is an NCCL warning that a rule knows, from 320 ranks of 40 nodes."""
    line = (
        "node{n:02d}:{pid}:{thread} [{gpu}] transport/net_ib.cc:96 NCCL WARN NET/IB : Got completion from peer"
        " 10.1.2.{n}<{port}> with error 12, opcode 0, len 0, vendor err 129"
    )
    ranks = [(node, gpu) for node in range(40) for gpu in range(8)]
    some = "\n".join(
        line.format(n=node, pid=4000 + gpu, thread=4100 + gpu, gpu=gpu, port=39000 + 7 * gpu) for node, gpu in ranks
    )
    return ((some + "\n") * ((megabytes << 20) // len(some))).encode()


def best(work, times: int = 3) -> tuple[float, float]:
    """(processor seconds, seconds on the clock) of the quickest of some runs."""
    took = []
    for _ in range(times):
        start, clock = time.process_time(), time.perf_counter()
        work()
        took.append((time.process_time() - start, time.perf_counter() - clock))
    return min(took)


def cut(text: bytes) -> list[bytes]:
    """As a file is read: a megabyte at a time, torn anywhere."""
    return [text[i : i + CHUNK] for i in range(0, len(text), CHUNK)]


def stream(matcher: Matcher, pieces: list[bytes], total: int, *, sampled: bool, numbered: bool) -> tuple[int, int]:
    """Feed the pieces again and again: (matches, lines of progress read)."""
    source = matcher.stream(StreamSource(kind=StreamKind.OUTPUT), sampled=sampled, numbered=numbered)
    matches = read = done = 0
    while done < total:
        for piece in pieces:
            for match in source.feed(piece, SECOND):
                matches += 1
                read += match.count
        done += CHUNK * len(pieces)
    source.flush(SECOND)
    return matches, read


def one_database(matcher: Matcher) -> hyperscan.Database:
    """All cores in one database, with nothing before it: what Hyperscan does by itself."""
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    texts = [
        (number, text.encode())
        for number, text in enumerate(matcher.expressions)
        if any(rule.kind != UNNAMED for rule in matcher.owners[number])
    ]
    database.compile(expressions=[text for _, text in texts], ids=[n for n, _ in texts], flags=[0] * len(texts))
    return database


def report(name: str, size: int, took: tuple[float, float], note: str = "", wanted: float = 0.0) -> bool:
    """Print one rate, and whether it is as much as wanted, GB/s."""
    rate = size / took[0] / 1e9
    verdict = "" if not wanted else f"  wanted {wanted:.2f}: {'met' if rate >= wanted else 'MISSED'}"
    print(f"  {name:<58} {rate:8.3f} GB/s  (clock: {size / took[1] / 1e9:6.3f}){verdict}  {note}", flush=True)
    return not wanted or rate >= wanted


@dataclass
class Row:
    """A rate that is taken in turns with the others."""

    name: str
    pieces: list[bytes]
    alone: float
    """Hyperscan's own rate on this text, GB/s."""
    sampled: bool = False
    numbered: bool = False
    wanted: float = 0.0
    took: list[tuple[float, float]] = field(default_factory=list)
    """(processor seconds, seconds on the clock) of each turn."""

    def report(self, total: int) -> bool:
        """Print the quickest turn, and the median and the slowest beside it."""
        rates = sorted(total / seconds / 1e9 for seconds, _ in self.took)
        note = f"median {statistics.median(rates):.3f}, slowest {rates[0]:.3f}; {rates[-1] / self.alone:.0%} of Hyperscan alone"
        return report(self.name, total, min(self.took), note, wanted=self.wanted)


def bytes_pattern(pattern: str) -> bytes:
    return pattern.encode()


def compare(catalogue, text: bytes, label: str) -> None:
    """The others, on a slice: they are slow."""
    rules = [pattern for rule in catalogue.scanned for pattern in rule.patterns]
    size = 256 << 10
    lines = text[:size].split(b"\n")
    compiled = [re.compile(bytes_pattern(pattern)) for pattern in rules]

    def by_re() -> None:
        for line in lines:
            for pattern in compiled:
                pattern.search(line)

    report(f"Python re, one rule after another ({label})", size, best(by_re, 1), f"{len(compiled)} patterns")
    try:
        import re2
    except ImportError:
        print(
            f"  google-re2 Set ({label}): NOT MEASURED, the package google-re2 is not installed"
            " (pip install google-re2; `make bench` installs it)",
            flush=True,
        )
    else:
        options = re2.Options()
        options.max_mem = 1 << 30
        options.log_errors = False
        chosen = re2.Set.SearchSet(options)
        taken = 0
        for pattern in rules:
            try:
                re2.compile(pattern, options)
                chosen.Add(pattern)
                taken += 1
            except re2.error:
                continue
        chosen.Compile()
        more = text[: 8 << 20].split(b"\n")

        def by_re2() -> None:
            for line in more:
                chosen.Match(line)

        report(f"google-re2 Set, line by line ({label})", 8 << 20, best(by_re2, 1), f"{taken} patterns")
    grep(catalogue, text, label)


def grep(catalogue, text: bytes, label: str) -> None:
    """grep -E with the cores, which are the part of the rules that its syntax can say."""
    extended = []
    for rule in catalogue.scanned:
        for core in rule.cores:
            plain = core.removeprefix("(?i)").replace("(?:", "(")
            plain = re.sub(r"\\x([0-9a-f]{2})", lambda m: re.escape(chr(int(m[1], 16))), plain)
            plain = plain.replace(r"\d", "[0-9]").replace(r"\s", "[[:space:]]").replace(r"\S", "[^[:space:]]")
            plain = plain.replace("[[0-9]]", "[0-9]").replace("[[[:space:]]]", "[[:space:]]")
            if subprocess.run(["grep", "-E", plain], input=b"", capture_output=True, check=False).returncode < 2:
                extended.append(plain)
    with tempfile.TemporaryDirectory() as folder:
        patterns, data = Path(folder, "patterns"), Path(folder, "text")
        patterns.write_text("\n".join(extended) + "\n")
        size = 32 << 20
        data.write_bytes(text[:size])
        start, clock = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(
            ["grep", "-E", "-c", "-f", str(patterns), str(data)], capture_output=True, check=False, env={"LC_ALL": "C"}
        )
        end = resource.getrusage(resource.RUSAGE_CHILDREN)
        took = end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime
        report(
            f"grep -E -c -f, LC_ALL=C ({label})",
            size,
            (max(took, 1e-9), time.perf_counter() - clock),
            f"{len(extended)} patterns",
        )


def explain(name: str, text: bytes, gigabytes: float) -> bool:
    """`holdfast explain` on a large file: seconds and memory of its own process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "job.log")
        with path.open("wb") as file:
            while file.tell() < gigabytes * 1e9:
                file.write(text)
            file.write(b"[rank3]: ValueError: the end\n")
        size = path.stat().st_size
        # A process's own peak is read from its memory map: the accounting of children counts our own size at the fork.
        code = (
            "import sys\nfrom holdfast.cli.main import main\ntry:\n    main()\nfinally:\n"
            "    print([l for l in open('/proc/self/status') if l.startswith('VmHWM')][0].split()[1], file=sys.stderr)"
        )
        command = [sys.executable, "-c", code, "explain", "--json", str(path)]
        for attempt in range(2):
            start, clock = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            done = subprocess.run(command, capture_output=True, check=False)
            took, end = time.perf_counter() - clock, resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu = end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime
            peak = int(done.stderr.split()[-1]) / 1024
            which = "warm" if attempt else "first"
            print(
                f"  holdfast explain, {name}, {size / 1e9:.2f} GB, {which}: {took:.2f} s on the clock, "
                f"{cpu:.2f} s of processor, largest {peak:.0f} MB, exit {done.returncode}"
            )
        wanted = 10.0 if text.count(b"NCCL WARN") else 3.0
        return cpu < wanted * max(gigabytes, 1.0) and peak < 300


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0, help="how much text for Holdfast's own rates")
    parser.add_argument("--turns", type=int, default=5, help="how often Holdfast's own rates are taken")
    parser.add_argument("--quick", action="store_true", help="64 MB instead, and no comparison")
    parser.add_argument("--explain", action="store_true", help="also time `holdfast explain` on a file of that size")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print Holdfast's own rates (quickest turn, GB/s) as JSON, the rest as errors",
    )
    options = parser.parse_args()
    figures = sys.stdout
    if options.json:
        sys.stdout = sys.stderr
    total = 64 << 20 if options.quick else int(options.gigabytes * 1e9)
    catalogue = read_catalogue()
    matcher = read_matcher(catalogue)
    print(
        f"{len(catalogue)} rules, {len(catalogue.scanned)} of which read lines, {len(matcher.expressions)} Hyperscan expressions"
    )
    quiet, busy, flood = prose(64), training(64), warnings(64)
    quiet_cut, busy_cut, flood_cut = cut(quiet), cut(busy), cut(flood)
    alone, whole = {}, one_database(matcher)
    texts = (("no line matches", quiet_cut), ("training output", busy_cut), ("NCCL warnings", flood_cut))
    for name, text in texts:
        # Piece by piece, as the streams get it; what Hyperscan finds is put into lists of ends, and nothing else is done.
        size, took = (
            sum(map(len, text)),
            best(lambda text=text: [hits(whole, piece) for piece in text]),
        )
        alone[name] = size / took[0] / 1e9
        report(f"Hyperscan alone, {name}", size, took)
    rows = [
        Row("no line matches, lines not counted", quiet_cut, alone["no line matches"], wanted=2.0),
        Row("no line matches, lines counted", quiet_cut, alone["no line matches"], numbered=True),
        Row("training output, every progress line read", busy_cut, alone["training output"], wanted=0.25),
        Row("training output, progress sampled", busy_cut, alone["training output"], sampled=True, wanted=0.8),
        Row("an NCCL warning on each line", flood_cut, alone["NCCL warnings"], sampled=True, wanted=0.1),
    ]
    for _ in range(options.turns):
        for row in rows:
            row.took.append(
                best(lambda row=row: stream(matcher, row.pieces, total, sampled=row.sampled, numbered=row.numbered), 1)
            )
    whole = min([row.report(total) for row in rows])
    if not options.quick:
        compare(catalogue, quiet, "no line matches")
        compare(catalogue, busy, "training output")
    if options.explain:
        for name, text in (("training output", busy), ("NCCL warnings", flood)):
            whole = explain(name, text, options.gigabytes if not options.quick else 0.1) and whole
    if options.json:
        print(json.dumps({row.name: total / min(row.took)[0] / 1e9 for row in rows}), file=figures)
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
