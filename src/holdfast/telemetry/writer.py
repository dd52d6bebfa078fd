"""The writing side of a telemetry slot, inside the training process.

Called by the public functions of `holdfast.telemetry` only. Times are the process's own clocks, read
through the vDSO: after `open_slot` no function here makes a system call or takes a lock, except
`SlotWriter.checkpoint`, which a background saver may call from its own thread and which is rare.

The step record is prepared in private memory and copied to the mapped page in one go, see `layout`.
Step and phase calls are meant for the training thread. Two threads that race on them can spoil one
copy of one record, which its CRC tells the reader; they cannot crash the process.
"""

# ruff: noqa: PTH102, PTH104, PTH108, PTH110, PTH118, PTH123
# pathlib costs more than this whole package to import, and its users pay at every start of every rank.

import faulthandler
import os
from _thread import allocate_lock
from errno import EPERM
from mmap import MAP_SHARED, PROT_READ, PROT_WRITE, mmap
from stat import S_ISDIR
from time import CLOCK_MONOTONIC, clock_gettime, monotonic, time
from zlib import crc32

from holdfast.telemetry import layout as at

# clock_gettime's name for time since boot, the clock of /proc/self/stat (Linux 2.6.39 and later).
_CLOCK_BOOTTIME = 7

ENV_DIR = "HOLDFAST_TELEMETRY_DIR"
"""`%N` in it stands for the node's name (SLURMD_NODENAME); such a folder is made by the first rank of its node."""
ENV_OWNER = "HOLDFAST_TELEMETRY_OWNER"


class SlotWriter:
    """Holds the mapped slot of this process. Made by `open_slot`."""

    __slots__ = (
        "_body",
        "_checkpoint_body",
        "_checkpoint_copies",
        "_checkpoint_d",
        "_checkpoint_lock",
        "_checkpoint_q",
        "_checkpoint_raw",
        "_copies",
        "_d",
        "_map",
        "_phase_is_held",
        "_q",
        "_raw",
        "_ring",
        "path",
    )

    def __init__(self, mapped: mmap, path: str) -> None:
        self.path = path
        self._map = mapped
        page = memoryview(mapped)
        size = at.STEP_WORDS * 8
        self._raw = memoryview(bytearray(size))
        self._body = self._raw[: size - 8]
        self._q = self._raw.cast("q")
        self._d = self._raw.cast("d")
        self._copies = tuple(page[start : start + size] for start in at.STEP_OFFSETS)
        self._ring = page[at.RING_OFFSET : at.RING_OFFSET + at.RING_ENTRIES * 8].cast("d")
        size = at.CHECKPOINT_WORDS * 8
        self._checkpoint_raw = memoryview(bytearray(size))
        self._checkpoint_body = self._checkpoint_raw[: size - 8]
        self._checkpoint_q = self._checkpoint_raw.cast("q")
        self._checkpoint_d = self._checkpoint_raw.cast("d")
        self._checkpoint_copies = tuple(page[start : start + size] for start in at.CHECKPOINT_OFFSETS)
        self._checkpoint_lock = allocate_lock()
        self._phase_is_held = 0
        self._q[at.BEGUN] = self._q[at.ENDED] = at.NO_STEP
        self._checkpoint_q[at.STAGED] = self._checkpoint_q[at.DURABLE] = at.NO_STEP
        self._set_phase(at.INIT)
        self._publish_checkpoint()

    def _publish(self) -> None:
        words = self._q
        number = words[at.SEQUENCE] + 1
        words[at.SEQUENCE] = number
        words[at.STEP_CRC] = crc32(self._body)
        self._copies[number & 1][:] = self._raw

    def _publish_checkpoint(self) -> None:
        words = self._checkpoint_q
        number = words[at.SEQUENCE] + 1
        words[at.SEQUENCE] = number
        words[at.CHECKPOINT_CRC] = crc32(self._checkpoint_body)
        self._checkpoint_copies[number & 1][:] = self._checkpoint_raw

    def step_begin(self, step: int) -> None:
        """Record that `step` has begun; a start-up phase becomes the first step."""
        words = self._q
        words[at.BEGUN] = step
        if words[at.PHASE] != at.TRAIN:
            self._phase_at_step_begin()
        times = self._d
        times[at.BEGIN_WALL] = time()
        times[at.BEGIN_MONO] = monotonic()
        number = words[at.SEQUENCE] + 1
        words[at.SEQUENCE] = number
        words[at.STEP_CRC] = crc32(self._body)
        self._copies[number & 1][:] = self._raw

    def step_end(self, step: int, loss: float | None, samples: int, tokens: int) -> None:
        """Record that `step` has ended; its duration counts when it is the step that was begun."""
        words = self._q
        times = self._d
        if loss is not None:
            times[at.LOSS] = loss
            words[at.LOSS_TOLD] = 1
        if samples:
            words[at.SAMPLES] += samples
        if tokens:
            words[at.TOKENS] += tokens
        words[at.ENDED] = step
        times[at.END_WALL] = time()
        times[at.END_MONO] = ended = monotonic()
        if words[at.BEGUN] == step:
            lasted = ended - times[at.BEGIN_MONO]
            count = words[at.STEPS]
            times[at.LAST_S] = lasted
            self._ring[count & (at.RING_ENTRIES - 1)] = lasted
            words[at.STEPS] = count + 1
        if words[at.PHASE] == at.FIRST_STEP and not self._phase_is_held:
            self._enter(at.TRAIN)
        number = words[at.SEQUENCE] + 1
        words[at.SEQUENCE] = number
        words[at.STEP_CRC] = crc32(self._body)
        self._copies[number & 1][:] = self._raw

    def _phase_at_step_begin(self) -> None:
        # A phase set by hand and never left would keep its own, longer limit for the rest of the run, and a mark
        # left over from a crash would do so after it. A step that begins outside a `with phase(...)` says otherwise.
        if self._phase_is_held:
            return
        phase = self._q[at.PHASE]
        if phase in {at.INIT, at.LOAD}:
            self._enter(at.FIRST_STEP)
        elif phase != at.FIRST_STEP:
            self._enter(at.TRAIN)

    def _enter(self, phase: int) -> None:
        now = monotonic()
        if self._q[at.PHASE] == at.CHECKPOINT and phase != at.CHECKPOINT:
            # What a save costs is how long training was held, also when the writing goes on behind it.
            self._q[at.SAVES] += 1
            self._d[at.SAVES_S] += now - self._d[at.PHASE_MONO]
        self._q[at.PHASE] = phase
        self._d[at.PHASE_WALL] = time()
        self._d[at.PHASE_MONO] = now

    def _set_phase(self, phase: int) -> None:
        self._enter(phase)
        self._publish()

    def set_phase(self, phase: int) -> None:
        """Enter a phase until the next call, or until a training step begins."""
        if self._q[at.PHASE] != phase:
            self._set_phase(phase)

    def hold_phase(self, phase: int) -> int:
        """Enter a phase that steps do not end, and return the phase to go back to."""
        before: int = self._q[at.PHASE]
        self._phase_is_held += 1
        self._set_phase(phase)
        return before

    def release_phase(self, before: int) -> None:
        """Leave the phase entered by `hold_phase`."""
        self._phase_is_held -= 1
        self._set_phase(before)

    def loss(self, value: float) -> None:
        """Record the newest loss."""
        self._d[at.LOSS] = value
        self._q[at.LOSS_TOLD] = 1
        self._publish()

    def accuracy(self, value: float) -> None:
        """Record the newest accuracy."""
        self._d[at.ACCURACY] = value
        self._q[at.ACCURACY_TOLD] = 1
        self._publish()

    def checkpoint(self, step: int, *, durable: bool) -> None:
        """Record a checkpoint of `step`, from any thread: staged (copied aside), or durable (safe on disk)."""
        word = at.DURABLE if durable else at.STAGED
        with self._checkpoint_lock:
            self._checkpoint_q[word] = step
            self._checkpoint_d[word + 1] = time()
            self._checkpoint_d[word + 2] = monotonic()
            self._publish_checkpoint()

    def completed_step(self) -> int | None:
        """The newest step that has ended."""
        step: int = self._q[at.ENDED]
        return None if step == at.NO_STEP else step

    def evacuate_requested(self) -> bool:
        """Whether the launcher has set the evacuation byte."""
        return self._map[at.EVACUATE_OFFSET] != 0


def make_folder(folder: str) -> None:
    """Make the folder, for this user alone, unless another rank of the node has.

    Raises:
        OSError: it cannot be made, or its name is a link's or another user's folder's, who would read what we write.
    """
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        found = os.lstat(folder)
        if not S_ISDIR(found.st_mode) or found.st_uid not in (0, os.geteuid()):
            raise PermissionError(EPERM, "the folder is not this user's", folder) from None


def open_slot(folder: str, rank: int) -> SlotWriter:
    """Create this process's slot in `folder`, replacing a leftover of the same name, and arm the stack signal.

    The file gets its blocks before it is mapped: a store to a hole on a full disk would kill the process with SIGBUS.
    It gets its name last, so that a reader never sees half a header, and a leftover that someone has
    mapped is not cut under them. It is this user's alone, and no planted link leads elsewhere.

    Raises:
        OSError: the folder is missing, full or read-only.
        ValueError: an environment variable is not a number.
    """
    path = os.path.join(folder, at.slot_name(rank))
    temporary = f"{path}.{os.getpid()}.new"
    _remove(temporary)
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, at.SLOT_BYTES)
        mapped = mmap(descriptor, at.SLOT_BYTES, MAP_SHARED, PROT_READ | PROT_WRITE)
        header = _header(rank, _arm_stacks(folder, rank))
        mapped[: len(header)] = header
        writer = SlotWriter(mapped, path)
        os.rename(temporary, path)
    except BaseException:
        # Whatever ends the opening, no half-made slot is left beside the good ones.
        _remove(temporary)
        raise
    finally:
        os.close(descriptor)
    # The launcher writes the file first and the bytes of existing slots second; we take our name first and look for
    # the file second. In every interleaving one of the two sees the other.
    if os.path.exists(os.path.join(folder, at.EVACUATE_NAME)):
        mapped[at.EVACUATE_OFFSET] = 1
    return writer


def _header(rank: int, stack_signal: int) -> bytes:
    start_wall, start_mono = process_start()
    header = at.HEADER.pack(
        at.MAGIC,
        at.VERSION,
        at.SLOT_BYTES,
        os.getpid(),
        rank,
        int(os.environ.get("LOCAL_RANK", "0")),
        int(os.environ.get("WORLD_SIZE", "1")),
        int(os.environ.get("HOLDFAST_ATTEMPT", "0")),
        int(os.environ.get("HOLDFAST_EPOCH", "0")),
        stack_signal,
        start_wall,
        start_mono,
        time(),
        monotonic(),
    )
    return header + at.HEADER_CRC.pack(crc32(header))


def _arm_stacks(folder: str, rank: int) -> int:
    """Have the stack signal append this process's stacks to a file; return the signal, or 0 when that fails."""
    # Imported here because it costs more than the rest of the package (enum), and only slots that open need it.
    import signal  # noqa: PLC0415

    from holdfast.telemetry.signals import STACK_SIGNAL  # noqa: PLC0415

    descriptor = -1
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(os.path.join(folder, at.stacks_name(rank)), flags, 0o600)
        # The descriptor stays open for the life of the process: the handler writes to it at any moment.
        try:  # noqa: SIM105 - contextlib costs more than the rest of the package
            # What faulthandler finds it gives back when the interpreter ends: by default the signal would kill it then.
            signal.signal(STACK_SIGNAL, signal.SIG_IGN)
        except ValueError:
            pass  # not the main thread
        faulthandler.register(STACK_SIGNAL, file=descriptor, all_threads=True, chain=False)
    except (OSError, RuntimeError, ValueError):
        if descriptor >= 0:
            os.close(descriptor)
        return 0
    return STACK_SIGNAL


def process_start() -> tuple[float, float]:
    """When this process started: seconds since 1970 and CLOCK_MONOTONIC seconds; now, where /proc cannot tell.

    Field 22 of /proc/self/stat counts clock ticks since boot (proc(5)); the fields before it may hold blanks
    and parentheses in the command's name, hence the search for the last parenthesis.
    """
    wall, mono = time(), monotonic()
    try:
        with open("/proc/self/stat", "rb") as stat:
            ticks = int(stat.read().rpartition(b")")[2].split()[19])
        age = clock_gettime(_CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return wall, mono
    return wall - age, clock_gettime(CLOCK_MONOTONIC) - age


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return
