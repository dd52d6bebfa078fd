"""What telemetry costs a training step, beside a bare function call; run it by hand, it has no limit to keep."""

import os
import subprocess
import sys
import tempfile
import timeit

ROUNDS = 200_000


def bare(step):
    return step


def ns(statement, names):
    best = min(timeit.repeat(statement, globals=names, number=ROUNDS, repeat=5))
    return best / ROUNDS * 1e9


def import_ms():
    """Median of what `import holdfast.telemetry` adds to an interpreter, by its own clock."""
    code = "import time; a=time.perf_counter(); import holdfast.telemetry; print((time.perf_counter()-a)*1e3)"
    runs = sorted(float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(9))
    return runs[4]


def main():
    from holdfast import telemetry

    names = {"telemetry": telemetry, "bare": bare}
    print(f"two bare function calls                {ns('bare(1); bare(1)', names):8.0f} ns")
    pair = "telemetry.step_begin(1); telemetry.step_end(1, loss=1.0, samples=8, tokens=4096)"
    print(f"step_begin + step_end, no launcher     {ns(pair, names):8.0f} ns")
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update({"HOLDFAST_TELEMETRY_DIR": folder, "RANK": "0"})
        print(f"step_begin + step_end, slot open       {ns(pair, names):8.0f} ns")
        block = "with telemetry.step(1): pass"
        print(f"with step(i)                           {ns(block, names):8.0f} ns")
        print(f"evacuate_requested                     {ns('telemetry.evacuate_requested()', names):8.0f} ns")
        from holdfast.telemetry.slot import read_slot

        path = f"{folder}/rank-00000.slot"
        print(f"read_slot                              {ns_read(read_slot, path):8.0f} ns")
    print(f"import holdfast.telemetry              {import_ms():8.2f} ms")


def ns_read(read_slot, path):
    return min(timeit.repeat(lambda: read_slot(path), number=2000, repeat=5)) / 2000 * 1e9


if __name__ == "__main__":
    main()
