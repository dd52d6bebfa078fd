"""Watches the drill folder inside a training process, and has each fault injected in the right thread, once.

Installed by `site/sitecustomize.py` before the script starts. One daemon thread polls the folder's
modification time every 20 ms. A command with a step is carried out by `telemetry.step_begin` in the
training thread; one without in the main thread, through a signal handler, or in the watching thread when
the main one stays inside C code and the fault is the same from any thread.

Only the process that holds the rank obeys: RANK is read when it is there (a warm standby gets it late), and
processes that the rank starts or forks stay out.
"""

import os
import signal
import sys
import threading
from pathlib import Path
from time import monotonic, sleep, time
from types import FrameType

from holdfast import telemetry
from holdfast.failpoint.command import ENV_DIR, ENV_OWNER, CommandError, FaultCommand, decode, fired_name
from holdfast.failpoint.drill import AlreadyFiredError, CannotInjectError, Drill
from holdfast.failpoint.faults import ANY_THREAD, FAULTS, SLOWING
from holdfast.telemetry.signals import DRILL_SIGNAL

POLL_S = 0.02
# How long the main thread may take to come to its signal handler before the watching thread does it.
MAIN_THREAD_GRACE_S = 0.25
# A signal that comes just before the main thread enters a call of C is only seen when that call ends: it is sent again
# so often, with the grace between. No oftener, for not every C library likes its calls interrupted.
ASKS_MAX = 8
# A folder that changed this lately may change again without its time showing it: file times tick in milliseconds,
# on network file systems in up to seconds.
_FRESH_S = 2.0


class Hook:
    """The drills of this process. All its state is changed in the watching thread, but for a drill's own `take`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rank: int | None = None
        self._step: int | None = None
        self._commands: dict[str, FaultCommand] = {}
        self._drills: dict[str, Drill] = {}
        self._aborted: set[str] = set()
        self._listed_at_ns = -1
        # Replaced as a whole, so that the training thread may walk an old one.
        self._by_step: tuple[Drill, ...] = ()
        self._now: tuple[Drill, ...] = ()
        self._follows_optimizer = False
        self._is_too_early = False
        self._asks = 0
        self._asked_at = 0.0

    def start(self) -> None:
        """Begin to watch, in a thread of its own."""
        threading.Thread(target=self.watch, name="holdfast-drill", daemon=True).start()

    def watch(self) -> None:
        """Poll until the process ends, or turns out not to be the rank."""
        while self.rank is None:
            rank = os.environ.get("RANK", "")
            if rank.isdecimal():
                if not self.claim_rank(int(rank)):
                    return
            else:
                sleep(POLL_S)
        while True:
            self.look()
            self._press()
            sleep(POLL_S)

    def claim_rank(self, rank: int) -> bool:
        """Become the process that obeys for `rank`; False when a parent is."""
        me = f"{os.getpid()}:{self.folder}"
        owner = os.environ.get(ENV_OWNER, me)
        if owner != me and owner.endswith(f":{self.folder}"):
            telemetry.set_step_hook(None)
            return False
        os.environ[ENV_OWNER] = me
        self.rank = rank
        return True

    def look(self) -> None:
        """Read what is new in the folder; a folder that is missing may come (back)."""
        try:
            changed_at_ns = self.folder.stat().st_mtime_ns
            if changed_at_ns == self._listed_at_ns and time() - changed_at_ns / 1e9 > _FRESH_S:
                return
            names = sorted(os.listdir(self.folder))  # noqa: PTH208 - names are all that is wanted
        except OSError:
            return
        self._listed_at_ns = changed_at_ns
        for name in names:
            drill_id, _, kind = name.rpartition(".")
            if kind == "abort" and drill_id not in self._aborted:
                self._aborted.add(drill_id)
                self._abort(drill_id)
        for name in names:
            drill_id, _, kind = name.rpartition(".")
            if kind == "json" and drill_id and drill_id not in self._commands and drill_id not in self._aborted:
                self._read(drill_id, name)

    def _read(self, drill_id: str, name: str) -> None:
        try:
            command = decode((self.folder / name).read_bytes())
        except OSError:
            return
        except CommandError as error:
            # Marked as known, because it would be said again at each look.
            self._commands[drill_id] = FaultCommand(drill_id, "", ())
            sys.stderr.write(f"holdfast.failpoint: {self.folder / name}: {error}\n")
            return
        self._commands[drill_id] = command
        if command.id != drill_id or self.rank is None or self.rank not in command.ranks or command.kind not in FAULTS:
            return
        if command.attempt is not None and str(command.attempt) != os.environ.get("HOLDFAST_ATTEMPT", "0"):
            return
        if (self.folder / fired_name(drill_id, self.rank)).exists():
            return
        drill = Drill(command, self.folder, self.rank, monotonic())
        self._drills[drill_id] = drill
        if command.at_step is not None or command.kind in SLOWING:
            self._by_step += (drill,)
        else:
            self._ask_main_thread(drill)

    def _ask_main_thread(self, drill: Drill) -> None:
        self._now += (drill,)
        self._asks = 0
        self._signal_main_thread()

    def _signal_main_thread(self) -> None:
        self._is_too_early = False
        self._asks += 1
        self._asked_at = monotonic()
        main = threading.main_thread().ident
        if main is not None:
            signal.pthread_kill(main, DRILL_SIGNAL)

    def _press(self) -> None:
        """Drop what is over, and find another way for drills that the training thread does not come to."""
        self._now = tuple(drill for drill in self._now if not drill.is_taken and not drill.aborted.is_set())
        self._by_step = tuple(
            drill for drill in self._by_step if not drill.aborted.is_set() and (drill.is_slowing or not drill.is_taken)
        )
        if self._now and (self._is_too_early or self._is_unheard()):
            self._signal_main_thread()
        for drill in self._now:
            if drill.command.kind in ANY_THREAD and monotonic() - drill.seen_at > MAIN_THREAD_GRACE_S:
                self._inject(drill)
        if telemetry.touched():
            return
        for drill in self._by_step:
            if not drill.is_taken and monotonic() - drill.seen_at > drill.param("telemetry_wait_s"):
                self._without_telemetry(drill)

    def _is_unheard(self) -> bool:
        """Whether the main thread may have missed the last signal, and another may help."""
        return self._asks < ASKS_MAX and monotonic() - self._asked_at > MAIN_THREAD_GRACE_S

    def _without_telemetry(self, drill: Drill) -> None:
        if drill.command.kind not in SLOWING:
            self._by_step = tuple(other for other in self._by_step if other is not drill)
            drill.seen_at = monotonic()
            self._ask_main_thread(drill)
        elif not self._follows_optimizer:
            if "torch" in sys.modules:
                from holdfast.failpoint.faults_torch import on_optimizer_steps  # noqa: PLC0415 - torch is there already

                self._follows_optimizer = on_optimizer_steps(self.on_optimizer_step) is not None
            if not self._follows_optimizer and drill.take():
                drill.mark_failed("the script neither calls holdfast.telemetry nor has a torch optimizer")

    def _abort(self, drill_id: str) -> None:
        drill = self._drills.get(drill_id)
        if drill is not None:
            drill.aborted.set()
            drill.undo()
            return
        command = self._commands.get(drill_id)
        if command is not None and command.kind == "hang_p2p" and "torch.distributed" in sys.modules:
            from holdfast.failpoint.faults_torch import release_receiver  # noqa: PLC0415 - torch is there already

            for rank in command.ranks:
                if (self.folder / fired_name(drill_id, rank)).exists():
                    try:
                        release_receiver(rank, command.params["peer"])
                    except RuntimeError as error:
                        sys.stderr.write(f"holdfast.failpoint: {drill_id}: rank {rank} is not released: {error}\n")

    def on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the shape of a signal handler
        """In the main thread, between two of its instructions: inject what waits for it."""
        while frame is not None and frame.f_globals.get("__name__") != "__main__":
            frame = frame.f_back
        if frame is None:
            # Outside the script (before its first line, or after its last) the interpreter's own start and end would
            # swallow what a fault raises, and the fault would be none.
            self._is_too_early = True
            self._asks = 0
            return
        self.inject_now()

    def inject_now(self) -> None:
        """Inject what waits for the main thread, in this thread."""
        for drill in self._now:
            self._inject(drill)

    def on_step(self, step: int) -> None:
        """In the training thread, after a step has begun."""
        self._step = step
        if self._by_step:
            self._inject_due(step)
        if self._now:
            self.inject_now()

    def on_optimizer_step(self) -> None:
        """In the training thread of a script without telemetry, after an optimizer's step: any step will do."""
        self._inject_due(None)

    def _inject_due(self, step: int | None) -> None:
        for drill in self._by_step:
            at_step = drill.command.at_step
            if at_step is not None and step is not None and step < at_step:
                continue
            if drill.is_slowing and not drill.aborted.is_set():
                FAULTS[drill.command.kind](drill, lambda: None)
            else:
                self._inject(drill)

    def _inject(self, drill: Drill) -> None:
        """Carry a drill out in this thread, unless some thread has; what the fault raises is meant for the script."""
        # The file is asked as well, so that a drill aborted within the last poll does not fire after all.
        if drill.abort_path.exists() or not drill.take():
            return
        drill.is_slowing = drill.command.kind in SLOWING
        try:
            FAULTS[drill.command.kind](drill, lambda: drill.mark_fired(self._step))
        except AlreadyFiredError:
            drill.is_slowing = False
        except (CannotInjectError, ImportError) as error:
            drill.is_slowing = False
            drill.mark_failed(str(error))


_hook: Hook | None = None


def install() -> None:
    """Watch `HOLDFAST_DRILL_DIR` in this process; called once, in the main thread, before the script.

    Raises:
        KeyError: the environment names no folder.
    """
    global _hook  # noqa: PLW0603 - one hook per process
    if _hook is not None:
        return
    hook = Hook(Path(os.environ[ENV_DIR]).absolute())
    rank = os.environ.get("RANK", "")
    if rank.isdecimal() and not hook.claim_rank(int(rank)):
        return
    _hook = hook
    signal.signal(DRILL_SIGNAL, hook.on_signal)
    # Calls that the signal meets in C code are restarted: a drill breaks what it says, not a read that came by.
    signal.siginterrupt(DRILL_SIGNAL, False)
    telemetry.set_step_hook(hook.on_step)
    os.register_at_fork(after_in_child=_in_forked_child)
    if hook.rank is not None:
        # Commands that are there already must be known before the first step, however soon it comes.
        hook.look()
    hook.start()


def _in_forked_child() -> None:
    global _hook  # noqa: PLW0603 - one hook per process
    if _hook is None:
        return
    if _hook.rank is not None:
        telemetry.set_step_hook(None)
        _hook = None
        return
    # A standby forked from a template becomes a rank of its own, and threads do not survive a fork.
    _hook = Hook(_hook.folder)
    signal.signal(DRILL_SIGNAL, _hook.on_signal)
    telemetry.set_step_hook(_hook.on_step)
    _hook.start()
