"""Recovery on a real Slurm on this machine, beside what `#SBATCH --requeue` alone would do. Needs Slurm's packages.

    python benchmarks/slurm.py [storm] [requeue] [lost] [batch]      (default: all)

`storm`: 200 jobs fail in one second on 64 slurmd; each is requeued once; slurmctld's load is sdiag's.
`requeue`: FAILED to RUNNING of one job, at Slurm's stock settings, beside the begin time that a requeue alone gets.
`lost`: a node without power and without a spare, at stock credential time (root: nodes have networks of their own).
`batch`: the same of the node that runs the batch script, and with it the job's leading launcher.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from holdfast.adapters.slurm.output import node_names
from holdfast.lab.settings import LabSettings
from holdfast.lab.slurm_lab import SlurmLab
from slurm_fixture import short_folder
from slurm_keeper import Kept

CALL = re.compile(r"^\s+([A-Z0-9_]+)\s*\(\s*\d+\) count:(\d+)\s+ave_time:(\d+)", re.MULTILINE)
ONCE = """#!/bin/bash
#SBATCH --ntasks=1 --output=/dev/null
#SBATCH --comment='{"holdfast": {"max_requeues": 3}}'
if [ -n "$SLURM_RESTART_COUNT" ]; then exec sleep 1000; fi
while [ ! -e GO ]; do sleep 0.2; done
exit 3
"""
LAUNCHED = """#!/bin/bash
#SBATCH --nodes=2 --exclusive --requeue --open-mode=append
#SBATCH --comment='{{"holdfast": {{"max_requeues": 9}}}}'
export HOLDFAST_CONTROLLER_FILE={folder}/controller/controller.json HOLDFAST_TOKEN_FILE={folder}/controller/agent-token
srun -K1 {python} -m holdfast.cli.main run {lease}--nproc-per-node 1 train.py
"""
POLICY = "[waits]\nsettle_s = 0.05\n[node]\nvalidate = false\n[brake]\nmax_percent = 100\nmax_nodes = 64\n"


@contextmanager
def cluster(**settings: object) -> Iterator[tuple[SlurmLab, Kept]]:
    with short_folder() as place, tempfile.TemporaryDirectory() as own:
        more = settings.pop("extra", "")
        settings["extra_conf"] = str(more).format(folder=place.resolve())
        with SlurmLab.start(LabSettings(**settings), place) as lab:  # type: ignore[arg-type]
            kept = Kept(lab, Path(own), POLICY)
            kept.listen = f"{lab.facts.ctld_address}:0"
            try:
                kept.start()
                yield lab, kept
            finally:
                kept.end()


class Load:
    """How busy slurmctld is, from `sdiag`; `calls`: message type -> how often, and mean microseconds."""

    def __init__(self, raw: str) -> None:
        self.threads, self.queue = (
            int(hit[1]) if (hit := re.search(rf"^{words}:\s+(\d+)", raw, re.MULTILINE)) else 0
            for words in ("Server thread count", "Agent queue size")
        )
        self.calls = {name: (int(times), int(mean)) for name, times, mean in CALL.findall(raw)}


def states(lab: SlurmLab) -> dict[str, tuple[str, str]]:
    rows = lab.run(["squeue", "-h", "-t", "all", "-O", "JobID:12,State:16,RestartCnt:6"]).splitlines()
    return {row.split()[0]: (row.split()[1], row.split()[2]) for row in rows}


def until(holds, limit_s: float, pause_s: float = 0.03) -> float:
    begun = time.monotonic()
    while not holds():
        if time.monotonic() - begun > limit_s:
            raise SystemExit(f"not within {limit_s} s")
        time.sleep(pause_s)
    return time.monotonic() - begun


def storm(jobs: int = 200, nodes: int = 64) -> None:
    with cluster(nodes=nodes, gpus=0) as (lab, kept):
        cwd = lab.folder / "jobs" / "storm"
        cwd.mkdir()
        script = cwd / "once.sh"
        script.write_text(ONCE)
        for _ in range(jobs):
            lab.run(["sbatch", "-Q", str(script)], cwd=cwd)
        until(lambda: list(states(lab).values()).count(("RUNNING", "0")) == jobs, 120, 0.5)
        until(lambda: len(kept.get("jobs")) == jobs, 60, 0.5)
        before = Load(lab.run(["sdiag"]))
        slowest, begun = 0.0, time.monotonic()
        (cwd / "GO").touch()
        while True:
            asked = time.monotonic()
            seen = list(states(lab).values())
            slowest = max(slowest, time.monotonic() - asked)
            if seen.count(("RUNNING", "1")) == jobs:
                break
            if time.monotonic() - begun > 300:
                raise SystemExit(f"after 300 s: {sorted(set(seen))}")
            time.sleep(0.25)
        took = time.monotonic() - begun
        after = Load(lab.run(["sdiag"]))
        print(f"storm: {jobs} jobs failed within a second on {nodes} slurmd: all running again, requeued once each,")
        print(f"       {took:.1f} s after; slowest squeue of a user meanwhile {slowest * 1000:.0f} ms")
        print(f"       sdiag: {after.threads} server threads, agent queue {after.queue}; calls meanwhile:")
        for name, (count, mean_us) in sorted(after.calls.items(), key=lambda item: -item[1][0])[:8]:
            print(f"         {name:36s} {count - before.calls.get(name, (0, 0))[0]:6d}   mean {mean_us} us")


def requeue(times: int = 5) -> None:
    with cluster(nodes=4, defaults=True) as (lab, kept):
        cwd = lab.folder / "jobs" / "one"
        cwd.mkdir()
        (cwd / "GO").touch()
        took = []
        for _ in range(times):
            job = lab.sbatch([], script=ONCE, cwd=cwd)
            lab.until_job(job, "FAILED", limit_s=60)
            took.append(until(lambda job=job: states(lab)[job] == ("RUNNING", "1"), 60))
        print(
            f"requeue: FAILED -> RUNNING, stock settings: best {min(took):.1f} s, median {statistics.median(took):.1f} s"
        )
        kept.end()
        job = lab.sbatch([], script=ONCE.replace("#SBATCH --comment", "# --comment"), cwd=cwd)
        lab.until_job(job, "FAILED", limit_s=60)
        lab.run(["scontrol", "requeue", job])
        begins = time.mktime(time.strptime(lab.job(job)["StartTime"], "%Y-%m-%dT%H:%M:%S")) - time.time()
        print(f"         plain requeue of the same job: Slurm says that it may begin in {begins:.0f} s")


def lost(times: int = 3, lease_s: float = 0.0, which: int = -1) -> None:
    name = "batch" if which == 0 else "lost"
    if os.geteuid() != 0:
        print(f"{name}: left out, nodes with networks of their own need root")
        return
    took: list[float] = []
    while len(took) < times:  # nodes that are lost stay so: after a few a new lab is needed
        took += lost_of_one_lab(min(4, times - len(took)), f"--lease-s {lease_s:g} " if lease_s else "", which)
    print(
        f"{name}: power off -> running elsewhere, no spare, stock credentials, "
        f"{f'lease of {lease_s:g} s' if lease_s else 'default lease'}: best {min(took):.1f} s, "
        f"median {statistics.median(took):.1f} s, worst {max(took):.1f} s of {len(took)}"
    )
    print("      plain --requeue: SlurmdTimeout (300 s) and 121 s of begin time, each plus its scheduler's turn")


def batch(times: int = 3, lease_s: float = 0.0) -> None:
    lost(times, lease_s, which=0)


def lost_of_one_lab(times: int, lease: str, which: int) -> Iterator[float]:
    credentials = "AuthInfo=socket={folder}/munge/socket"
    with cluster(nodes=8, netns=True, boot_s=0.3, slurmd_timeout_s=300, extra=credentials) as (lab, kept):
        cwd = lab.folder / "jobs" / "lost"
        cwd.mkdir()
        (cwd / "train.py").write_text("import time\nwhile True:\n    time.sleep(0.1)\n")
        script = LAUNCHED.format(folder=kept.folder, python=sys.executable, lease=lease)
        for _ in range(times):
            job = lab.sbatch([], script=script, cwd=cwd)
            kept.until(lambda job=job: kept.job(job).get("attempts", [{}])[-1].get("epoch"), "its launchers run", 90)
            time.sleep(3.0)
            node = kept.job(job)["view"]["nodes"][which]
            begun = time.monotonic()
            lab.crash(node)
            kept.until(lambda job=job: states(lab)[job] == ("RUNNING", "1"), "elsewhere", 60)
            took = time.monotonic() - begun
            print(f"      {took:.2f} s", flush=True)
            if node in node_names(lab.job(job)["NodeList"]):
                raise SystemExit("it came back on the dead node")
            lab.run(["scancel", job])
            yield took


def main() -> None:
    parts = {"requeue": requeue, "lost": lost, "batch": batch, "storm": storm}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*parts, []], help="default: all")
    parser.add_argument("--times", type=int, default=0, help="of requeue, lost and batch; default 5, 3 and 3")
    parser.add_argument(
        "--lease-s", type=float, default=0.0, help="of the launchers in lost and batch; default: theirs"
    )
    got = parser.parse_args()
    for name in got.parts or parts:
        more = {"times": got.times} if got.times and name != "storm" else {}
        parts[name](**more, **({"lease_s": got.lease_s} if name in {"lost", "batch"} else {}))


if __name__ == "__main__":
    main()
