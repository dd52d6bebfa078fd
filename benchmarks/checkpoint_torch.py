"""What a save costs the training, and what a restore costs: side by side with torch's own ways, in one run.

    python benchmarks/checkpoint_torch.py [--gb 1.0] [--rounds 3] [--folder DIR]

One process on the CPU, a state of that many GB (half weights, half moments). Printed for each way: the
stall (how long the training thread is held by a save), the time until it is durable, and for restores the
load with and without verification. Medians of the rounds; the first save of each way is shown apart,
because buffers are made in it.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

from holdfast.checkpoint import Checkpointer, scan, verify
from holdfast.checkpoint.files import fsync_folder

warnings.filterwarnings("ignore")


def state_of(gigabytes: float) -> dict:
    torch.manual_seed(1)
    width = 2048
    layers = max(1, round(gigabytes * 1e9 / 2 / 4 / width / width))
    weights = {f"layer{i}": torch.randn(width, width) for i in range(layers)}
    moments = {f"layer{i}": torch.randn(width, width) for i in range(layers)}
    return {"weights": weights, "moments": moments}


def bytes_of(state: dict) -> int:
    return sum(t.numel() * t.element_size() for part in state.values() for t in part.values())


def clocked(call) -> tuple[float, object]:
    began = time.perf_counter()
    result = call()
    return time.perf_counter() - began, result


def save_plain(state: dict, folder: Path, step: int):
    path = folder / f"plain-{step}.pt"

    def save():
        with path.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())

    stall, _ = clocked(save)
    return stall, stall


def save_dcp(state: dict, folder: Path, step: int):
    began = time.perf_counter()
    future = dcp.async_save(state, checkpoint_id=folder / f"dcp-{step}", no_dist=True)
    stall = time.perf_counter() - began
    future.result()
    return stall, time.perf_counter() - began


def saver(checkpointer: Checkpointer):
    def save(state: dict, _folder: Path, step: int):
        began = time.perf_counter()
        checkpointer.save(step, state)
        stall = time.perf_counter() - began
        if not checkpointer.wait():
            sys.exit("the save failed")
        return stall, time.perf_counter() - began

    return save


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gb", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="holdfast-bench-", dir=arguments.folder))
    found: dict[str, float] = {}
    try:
        state = state_of(arguments.gb)
        size = bytes_of(state)
        checkpointer = Checkpointer(folder / "holdfast", keep=1, signals=(), environ={})
        ways = {"torch.save": save_plain, "dcp.async_save": save_dcp, "holdfast": saver(checkpointer)}
        stalls: dict[str, list[float]] = {way: [] for way in ways}
        durable: dict[str, list[float]] = {way: [] for way in ways}
        for step in range(1, arguments.rounds + 2):
            for way, save in ways.items():
                stall, total = save(state, folder, step)
                stalls[way].append(stall)
                durable[way].append(total)
                for old in [*folder.glob("plain-*"), *folder.glob("dcp-*")]:
                    if step <= arguments.rounds:
                        shutil.rmtree(old) if old.is_dir() else old.unlink()
        for way in ways:
            found[f"{way} stall_s"] = statistics.median(stalls[way][1:])
            found[f"{way} first stall_s"] = stalls[way][0]
            found[f"{way} durable_s"] = statistics.median(durable[way][1:])
        newest = scan(folder / "holdfast")[0]
        found["verify GB/s"] = size / 1e9 / min(clocked(lambda: verify(newest.path))[0] for _ in range(3))
        found["dcp load_s"] = min(
            clocked(lambda: dcp.load(state, checkpoint_id=folder / f"dcp-{arguments.rounds + 1}", no_dist=True))[0]
            for _ in range(3)
        )
        found["holdfast restore_s (verified)"] = min(clocked(lambda: checkpointer.restore(state))[0] for _ in range(3))
        checkpointer.close()
        fsync_folder(folder)
    finally:
        shutil.rmtree(folder)
    if arguments.json:
        print(json.dumps(found))
        return
    print(f"state {size / 1e9:.2f} GB, {torch.get_num_threads()} threads, medians of {arguments.rounds}")
    for name, value in found.items():
        print(f"  {name:<34} {value:8.3f}")


if __name__ == "__main__":
    main()
