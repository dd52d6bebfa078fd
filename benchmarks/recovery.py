"""From a rank's death to the first new step: Holdfast beside what a user would pick instead, in one run.

Peers: `torchrun --max-restarts` of PyTorch and `ft_launcher` of nvidia-resiliency-ext. Same script (the small GPT, two
ranks, gloo), same checkpoints, same signal. Runs are interleaved, so that a noisy minute hits every launcher alike.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from peers import NotBackError, death_to_first_step, launchers

from holdfast.workload import gpt_torch

RANKS = 2
PORT = 29633


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", default="", metavar="TEXT", help="launchers whose name holds this text: `holdfast`")
    options = parser.parse_args()
    script = [gpt_torch.__file__, "--steps", "1000000", "--checkpoint-every", "10"]
    script += ["--checkpoint-dir", "{folder}/checkpoints", "--step-time", "0.05"]
    times: dict[str, list[float]] = {}
    lost: dict[str, int] = {}
    for run in range(options.runs):
        for launcher in [one for one in launchers(RANKS, PORT + run) if options.only in one.name]:
            found = times.setdefault(launcher.name, [])
            try:
                found.append(death_to_first_step(launcher, script, at_step=25, rank=1, sig=signal.SIGSEGV))
            except NotBackError as error:
                lost[launcher.name] = lost.get(launcher.name, 0) + 1
                print(f"  run {run + 1}/{options.runs} {launcher.name:30s} {error}", file=sys.stderr, flush=True)
                continue
            print(f"  run {run + 1}/{options.runs} {launcher.name:30s} {found[-1]:6.2f} s", file=sys.stderr, flush=True)
    medians = {name: statistics.median(found) if found else math.inf for name, found in times.items()}
    if options.json:
        print(json.dumps({"runs": times, "medians": medians, "not_back": lost}))
        return
    best = min([medians[name] for name in ("torchrun", "ft_launcher") if name in medians], default=math.inf)
    print(f"From a rank's death (SIGSEGV) to the first new step, {RANKS} ranks, median of {options.runs} runs:")
    for name, value in medians.items():
        spread = f"{min(times[name], default=math.inf):.2f}-{max(times[name], default=math.inf):.2f}"
        back = f"; did not come back in {lost[name]} of {options.runs}" if name in lost else ""
        beside = f"   {value / best:5.2f} x the faster peer" if math.isfinite(best) else ""
        print(f"  {name:30s} {value:6.2f} s  ({spread}){beside}{back}")


if __name__ == "__main__":
    main()
