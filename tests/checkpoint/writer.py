"""A process that saves one checkpoint after another until it is killed or fenced; started by tests.

    python writer.py FOLDER

Prints `published N` after each. The content of step N can be computed by the reader.
"""

import sys

import xxhash

from holdfast.checkpoint.errors import FencedError
from holdfast.checkpoint.store import CheckpointStore


def content(step: int) -> bytes:
    return xxhash.xxh3_128(str(step).encode()).digest() * 4000


def main() -> None:
    store = CheckpointStore(sys.argv[1])
    store.sweep()
    found = store.newest_good()
    step = found.step if found else 0
    store.settle(step)
    while True:
        step += 1
        try:
            pending = store.begin(step)
            for part in range(3):
                pending.write_bytes(f"part-{part}.bin", content(step))
            pending.publish(world_size=1, attempt="0", layout="test")
            print(f"published {step}", flush=True)
            store.prune(2)
        except FencedError as error:
            print(f"fenced: {error}", flush=True)
            return


if __name__ == "__main__":
    main()
