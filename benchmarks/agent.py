"""What an agent costs: processor time and memory with eight emulated GPUs and ten growing job logs.

A real agent process (poll 15 s, beat 10 s) with its reading processes, a controller that takes everything, ten logs that
grow by ten lines a second each, and beside them, on the same machine, the Prometheus node exporter when it is installed
(`apt-get install prometheus-node-exporter`), scraped every 15 s. Figures are sums over the process and its children, from
the kernel's accounting. `--minutes 10` is what the documentation quotes. At the end one log grows by `BURST` lines at
once: the processor time until the finding of its last line is delivered, less what the same time costs without them.
"""

from __future__ import annotations

import argparse
import http.server
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import uuid
from pathlib import Path

import psutil

LOGS = 10
LINES_PER_S = 10
BURST = 10_000
LAST = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
GPU_BUSES = ("53", "64", "75", "86", "97", "a8", "b9", "ca")
TARGET_CORE = 0.01
TARGET_MIB = 130.0


class Controller(http.server.BaseHTTPRequestHandler):
    """Takes every beat and every event."""

    protocol_version = "HTTP/1.1"
    beats = 0
    events = 0

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path.startswith("/v1/beat"):
            Controller.beats += 1
            answer = b'{"lease_s":30.0}'
        else:
            Controller.events += len(body["events"])
            answer = b'{"seq":1}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args):
        del args


def node_folder(folder: Path) -> Path:
    node = folder / "node"
    (node / "tmp").mkdir(parents=True)
    facts = {
        "name": "node01", "boot_id": str(uuid.uuid4()), "instance_id": "i-1", "booted_at": time.time(),
        "gpus": [{"index": n, "pci": f"0000:{bus}:00", "uuid": f"GPU-{bus}"} for n, bus in enumerate(GPU_BUSES)],
    }  # fmt: skip
    (node / "node.json").write_text(json.dumps(facts))
    (node / "kmsg").write_text("")
    return node


def grow(logs: list[Path], stop: threading.Event) -> None:
    """Lines as trainings print them: steps, and now and then a warning."""
    step = 0
    files = [path.open("a", buffering=1) for path in logs]
    while not stop.wait(1.0 / LINES_PER_S):
        step += 1
        for rank, file in enumerate(files):
            file.write(
                f"2026-11-21 12:00:{step % 60:02d} [rank{rank}] step {step} loss {2.5 + step % 7:.4f} lr 3.0e-04 tok/s 51234\n"
            )


class Cost:
    """Processor seconds and memory of a process and all its children."""

    def __init__(self, pid: int) -> None:
        self.process = psutil.Process(pid)
        self.start_s, self.start = time.monotonic(), self.cpu()
        self.rss = self.pss = 0.0

    def family(self) -> list[psutil.Process]:
        return [self.process, *self.process.children(recursive=True)]

    def cpu(self) -> float:
        times = self.process.cpu_times()
        total = times.user + times.system + times.children_user + times.children_system
        for child in self.process.children(recursive=True):
            try:
                of = child.cpu_times()
                total += of.user + of.system + of.children_user + of.children_system
            except psutil.NoSuchProcess:
                continue
        return total

    def look(self) -> None:
        rss = pss = 0.0
        for one in self.family():
            try:
                full = one.memory_full_info()
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
            rss, pss = rss + full.rss / 2**20, pss + full.pss / 2**20
        self.rss, self.pss = max(self.rss, rss), max(self.pss, pss)

    def share(self) -> float:
        return (self.cpu() - self.start) / (time.monotonic() - self.start_s)


def burst(cost: Cost, log: Path) -> float:
    """Processor seconds of `BURST` lines."""
    share, events, begun, before = cost.share(), Controller.events, time.monotonic(), cost.cpu()
    lines = (f"[rank0] step {n} loss {2.5 + n % 7:.4f} lr 3.0e-04 tok/s 51234\n" for n in range(BURST))
    with log.open("a") as file:
        file.write("".join(lines) + LAST)
    while Controller.events == events:
        if time.monotonic() - begun > 60:
            raise TimeoutError("the burst's finding did not come")
        time.sleep(0.05)
    time.sleep(1.0)
    return cost.cpu() - before - share * (time.monotonic() - begun)


def scrape(url: str) -> None:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            answer.read()
    except OSError:
        pass


def measure(minutes: float, folder: Path) -> tuple[dict[str, tuple[float, float, float, int]], float]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Controller)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (folder / "controller.json").write_text(json.dumps({"url": f"http://127.0.0.1:{server.server_port}", "pid": 1}))
    logs = [folder / f"job-{n}.out" for n in range(LOGS)]
    for log in logs:
        log.write_text("")
    (folder / "agent.toml").write_text(f'[[logs]]\npath = "{folder}/job-*.out"\n')
    node = node_folder(folder)
    argv = [sys.executable, "-m", "holdfast.agent", "--node-dir", str(node), "--controller-file"]
    argv += [str(folder / "controller.json"), "--beat-s", "10", "--poll-s", "15", "--emulated-devices"]
    argv += ["--config", str(folder / "agent.toml"), "--metrics", "127.0.0.1:0"]
    stop = threading.Event()
    threading.Thread(target=grow, args=(logs, stop), daemon=True).start()
    exporter = shutil.which("prometheus-node-exporter") or shutil.which("node_exporter")
    port = server.server_port + 1
    with (folder / "agent.log").open("w") as log:
        agent = subprocess.Popen(argv, stdout=log, stderr=log)
        other = None
        if exporter:
            other = subprocess.Popen([exporter, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
        try:
            time.sleep(8.0)  # imports and first looks are paid once
            costs = {"holdfast agent": Cost(agent.pid)}
            if other is not None:
                costs["node exporter"] = Cost(other.pid)
            end = time.monotonic() + minutes * 60
            while time.monotonic() < end:
                time.sleep(min(15.0, max(0.1, end - time.monotonic())))
                if other is not None:
                    scrape(f"http://127.0.0.1:{port}/metrics")
                for cost in costs.values():
                    cost.look()
            found = {name: (cost.share(), cost.rss, cost.pss, len(cost.family())) for name, cost in costs.items()}
            lines_s = burst(costs["holdfast agent"], logs[0])
        finally:
            stop.set()
            for process in (agent, other):
                if process is not None:
                    process.terminate()
                    process.wait(10)
            server.shutdown()
    return found, lines_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-agent-") as name:
        found, lines_s = measure(args.minutes, Path(name))
    print(f"{args.minutes:g} minutes, 8 emulated GPUs, {LOGS} logs x {LINES_PER_S} lines/s, poll 15 s, beat 10 s")
    for who, (share, rss, pss, count) in found.items():
        print(
            f"  {who:<16} {100 * share:6.3f} % of a core   RSS {rss:6.1f} MiB   PSS {pss:6.1f} MiB   {count} processes"
        )
    print(f"  {BURST} lines at once: {1e3 * lines_s:.0f} ms of processor time")
    print(f"  beats taken: {Controller.beats}, events taken: {Controller.events}")
    share, rss, _, _ = found["holdfast agent"]
    good = share < TARGET_CORE and rss < TARGET_MIB
    print(
        f"  target: below {100 * TARGET_CORE:g} % of a core and {TARGET_MIB:g} MiB resident: {'met' if good else 'MISSED'}"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
