"""The bytes of a telemetry slot: one file of one page per rank.

Used by `writer` (in the training process) and `slot` (the launcher and the agent). Nothing here reads
a clock or a file. Byte order and word size are the machine's own: a slot is read on the node that
writes it, and `MAGIC` with `VERSION` refuses anything else. A reader takes `OLDER_VERSION` as well: a job that runs
keeps the version that it began with while the agent beside it is upgraded.

How a reader gets a whole record from a writer that takes no lock: each record exists twice. Write
number n goes to copy n & 1 and carries n as its first word and a CRC-32 of the other words as its last.
The reader copies both and keeps the newest that passes. A rank killed in the middle of a write leaves
the other copy whole, so that the last state of a dead rank can always be told. The CRC also stands in
for memory barriers, which Python cannot issue on processors that reorder stores.

    offset   what
    0        header, written once before the file gets its name (HEADER)
    192      evacuation byte: set by the launcher, read by the rank
    256/512  step record, copies 0 and 1 (STEP_WORDS words of 8 bytes)
    768/896  checkpoint record, copies 0 and 1 (CHECKPOINT_WORDS words of 8 bytes)
    1024     ring of step durations: 128 doubles, of which readers use the last 64
"""

from struct import Struct

MAGIC = b"HFSLOT\x0d\x0a"
VERSION = 3
OLDER_VERSION = 2
"""Its step record lacks the words of accuracy; all else is the same."""
SLOT_BYTES = 4096

# magic, version, size, pid, rank, local_rank, world_size, attempt, epoch, stack signal (0: not armed),
# process start wall and monotonic, slot opened wall and monotonic; followed by the CRC-32 of all that.
HEADER = Struct("=8sII7q4d")
HEADER_CRC = Struct("=I")

EVACUATE_OFFSET = 192

STEP_OFFSETS = (256, 512)
STEP_WORDS = 21
# Words of the step record. `wall` is seconds since 1970, `mono` the node's CLOCK_MONOTONIC in seconds.
SEQUENCE = 0
PHASE = 1
PHASE_WALL = 2
PHASE_MONO = 3
BEGUN = 4
BEGIN_WALL = 5
BEGIN_MONO = 6
ENDED = 7
END_WALL = 8
END_MONO = 9
LAST_S = 10
STEPS = 11
SAMPLES = 12
TOKENS = 13
LOSS = 14
LOSS_TOLD = 15
SAVES = 16
SAVES_S = 17
ACCURACY = 18
ACCURACY_TOLD = 19
STEP_CRC = 20

CHECKPOINT_OFFSETS = (768, 896)
CHECKPOINT_WORDS = 8
STAGED = 1
STAGED_WALL = 2
STAGED_MONO = 3
DURABLE = 4
DURABLE_WALL = 5
DURABLE_MONO = 6
CHECKPOINT_CRC = 7

RING_OFFSET = 1024
# Twice what readers use: an entry that the writer adds while a reader copies never lands on one that the reader wants.
RING_ENTRIES = 128
RING_VISIBLE = 64

PHASES = ("init", "load", "first_step", "train", "eval", "checkpoint", "shutdown")
INIT, LOAD, FIRST_STEP, TRAIN, EVAL, CHECKPOINT, SHUTDOWN = range(7)

NO_STEP = -1


def slot_name(rank: int) -> str:
    """File name of a rank's slot, such as `rank-00005.slot`."""
    return f"rank-{rank:05d}.slot"


def stacks_name(rank: int) -> str:
    """File name that a rank's stack dumps are appended to, such as `rank-00005.stacks`."""
    return f"rank-{rank:05d}.stacks"


EVACUATE_NAME = "evacuate"
