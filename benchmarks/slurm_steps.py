"""How soon a step runs again inside its allocation, on a real Slurm of 8 nodes with Slurm's default times.

    rank killed                   `kill -9` of a rank  -> first task of the new step (bound: 0.5 s)
    node lost, spare in the job   power off            -> first task of the new step (bound: 4 s)
    node lost, no spare           power off            -> script of the requeued job (bound: 5 s)

beside what Slurm alone does: a script that calls srun again in a loop, and a job that is requeued (`scontrol requeue`
by hand; the lost node itself Slurm notices after SlurmdTimeout, 300 s by default, which is not waited for here).
Each task prints the time as its first act, so the start of its interpreter is in the figures; the same is done for
plain srun. Best, median and longest are printed: on a shared machine the longest says more about the neighbours.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

from holdfast.errors import LinkError
from holdfast.lab.settings import LabSettings
from holdfast.lab.slurm_lab import SlurmLab
from holdfast.lab.waiting import wait_until

TASK = """
[ "$ATTEMPT_ENDS" ] || ATTEMPT_ENDS=0
attempt=${HOLDFAST_ATTEMPT:-$OWN_ATTEMPT}
echo "began $SLURMD_NODENAME $attempt $SLURM_PROCID $(date +%s.%N)"
if [ "$attempt" != 0 ]; then exit 0; fi
if [ "$SLURM_PROCID" = 1 ] && [ "$KILL" = 1 ]; then
  while [ ! -e go ]; do sleep 0.01; done
  date +%s.%N >killed.new; mv killed.new killed; kill -9 $$
fi
sleep 300
"""
HEAD = "#!/bin/bash\nexport PATH={bin}:$PATH\ncd {folder}\n"


class Case:
    def __init__(self, lab: SlurmLab, folder: Path, *, kill: bool) -> None:
        self.lab, self.folder, self.kill = lab, folder, kill
        self.out = folder / "job.out"
        (folder / "task.sh").write_text(TASK)

    def submit(self, commands: str, nodes: int) -> str:
        head = HEAD.format(bin=Path(sys.executable).parent, folder=self.folder)
        script = (
            f"{head}export KILL={int(self.kill)}\necho script $(date +%s.%N) ${{SLURM_RESTART_COUNT:-0}}\n{commands}\n"
        )
        args = [f"--nodes={nodes}", f"--output={self.out}", "--open-mode=append", "--exclusive", "--requeue"]
        return self.lab.sbatch(args, script=script, cwd=self.folder)

    def found(self, pattern: str, count: int = 1, limit_s: float = 240.0) -> list[str]:
        found: list[str] = []

        def there() -> bool:
            text = self.out.read_text(errors="replace") if self.out.exists() else ""
            found[:] = re.findall(pattern, text, re.MULTILINE)
            return len(found) >= count

        wait_until(there, f"{pattern} in {self.out}", limit_s=limit_s, logs=(self.out,))
        return found

    def ready(self) -> str:
        """All tasks run, the watchers watch and the engine judges; the node of task 1."""
        self.found(r"^began \S+ 0 \d+ ([\d.]+)$", 2)
        logs = self.folder / "job" / "step-0" / "logs"
        wait_until(lambda: list(logs.glob("watcher-*.log")), "watchers", limit_s=60.0, logs=(self.out,))
        wait_until((logs.parent / "journal.db").exists, "the journal", limit_s=60.0, logs=(self.out,))
        time.sleep(2.0)
        return self.found(r"^began (\S+) 0 1 [\d.]+$")[0]

    def killed(self) -> float:
        """When the rank killed itself: in a file, because srun may lose a task's last line."""
        noted = self.folder / "killed"
        wait_until(noted.exists, "the kill", limit_s=60.0, logs=(self.out,))
        return float(noted.read_text())

    def first(self, attempt: int) -> float:
        return min(float(at) for at in self.found(rf"^began \S+ {attempt} \d+ ([\d.]+)$", 2))


def supervised(folder: Path, more: str) -> str:
    return f"holdfast srun --auto-resume=1 --job-dir {folder}/job {more} bash task.sh"


def rank_killed(lab: SlurmLab, folder: Path) -> float:
    case = Case(lab, folder, kill=True)
    case.submit(supervised(folder, "-N8 -n8"), 8)
    case.ready()
    (folder / "go").touch()
    return case.first(1) - case.killed()


def rank_killed_by_hand(lab: SlurmLab, folder: Path) -> float:
    case = Case(lab, folder, kill=True)
    case.submit("for OWN_ATTEMPT in 0 1; do export OWN_ATTEMPT; srun -K1 -N8 -n8 bash task.sh && break; done", 8)
    case.found(r"^began \S+ 0 \d+ ([\d.]+)$", 8)
    (folder / "go").touch()
    return case.first(1) - case.killed()


def requeued_by_hand(lab: SlurmLab, folder: Path) -> float:
    case = Case(lab, folder, kill=True)
    job = case.submit(
        "export OWN_ATTEMPT=${SLURM_RESTART_COUNT:-0}; srun -K1 -N8 -n8 bash task.sh || scontrol requeue $SLURM_JOB_ID; sleep 60",
        8,
    )
    case.found(r"^began \S+ 0 \d+ ([\d.]+)$", 8)
    (folder / "go").touch()
    took = case.first(1) - case.killed()
    lab.run(["scancel", job])
    return took


def node_lost(lab: SlurmLab, folder: Path) -> float:
    case = Case(lab, folder, kill=False)
    case.submit(supervised(folder, "-N7 -n7"), 8)
    victim = case.ready()
    off = time.time()
    lab.node("crash", victim)
    return case.first(1) - off


def node_lost_without_spare(lab: SlurmLab, folder: Path) -> float:
    case = Case(lab, folder, kill=False)
    case.submit(supervised(folder, "-N6 -n6"), 6)
    victim = case.ready()
    off = time.time()
    lab.node("crash", victim)
    return float(case.found(r"^script ([\d.]+) 1$")[0]) - off


CASES = {
    "rank killed, holdfast srun": (rank_killed, 0.5),
    "rank killed, srun in a loop": (rank_killed_by_hand, None),
    "node lost, spare, holdfast srun": (node_lost, 4.0),
    "node lost, no spare, requeued by holdfast srun": (node_lost_without_spare, 5.0),
    "rank killed, scontrol requeue": (requeued_by_hand, None),
}


def settle(lab: SlurmLab) -> None:
    """Everything as it was: no jobs, all nodes up and idle."""
    lab.run(["scancel", "--signal=KILL", "--full", "--user", lab.facts.user])
    lab.run(["scancel", "--user", lab.facts.user])
    for name, node in lab.status()["nodes"].items():
        if node["power"] != "on":
            lab.start_node(name)

    def idle() -> bool:
        for name, state in lab.node_states().items():
            if state != "idle":
                for word in ("DOWN", "RESUME"):
                    with contextlib.suppress(LinkError):  # it came back by itself meanwhile
                        lab.run(["scontrol", "update", f"NodeName={name}", f"State={word}", "Reason=bench"])
        time.sleep(0.5)
        states = lab.node_states()
        idle.states = states
        return set(states.values()) == {"idle"} and not lab.run(["squeue", "-h"]).strip()

    try:
        wait_until(idle, "nodes are not idle", limit_s=120.0, logs=())
    except LinkError as error:
        raise LinkError(f"{error}: {idle.states}") from error


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--only", default="", help="part of a case's name")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--without-requeue", action="store_true", help="leave out the case of 132 s")
    got = parser.parse_args()
    settings = LabSettings(nodes=8, netns=os.geteuid() == 0, defaults=True, boot_s=0.3)
    with tempfile.TemporaryDirectory(prefix="hf-b-") as base:
        Path(base).chmod(0o755)  # munged wants every folder above its socket open
        rows = measure(Path(base), settings, got)
    if got.json:
        print(json.dumps(rows, indent=2))
    return 0 if all(row["bound_s"] is None or row["best_s"] < row["bound_s"] for row in rows.values()) else 1


def measure(base: Path, settings: LabSettings, got: argparse.Namespace) -> dict[str, dict[str, float | None]]:
    rows: dict[str, dict[str, float | None]] = {}
    with SlurmLab.start(settings, base / "lab") as lab:
        for name, (case, bound) in CASES.items():
            is_slow = case is requeued_by_hand
            if got.only not in name or (is_slow and got.without_requeue):
                continue
            took = []
            for number in range(1 if is_slow else got.times):
                folder = base / f"{case.__name__}-{number}"
                folder.mkdir()
                took.append(case(lab, folder))
                settle(lab)
            rows[name] = {
                "best_s": min(took),
                "median_s": statistics.median(took),
                "longest_s": max(took),
                "n": len(took),
                "bound_s": bound,
            }
            if not got.json:
                told = "" if bound is None else f"   bound {bound:g} s"
                print(
                    f"{name:48s} best {min(took):7.2f} s  median {statistics.median(took):7.2f} s  longest {max(took):7.2f} s  of {len(took)}{told}",
                    flush=True,
                )
    return rows


if __name__ == "__main__":
    sys.exit(main())
