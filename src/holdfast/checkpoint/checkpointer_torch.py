"""`Checkpointer`: what a PyTorch training script calls to save, and to resume from the newest good state.

Called by user code on every rank, in the same order on each (its calls are collective like the
training's own). A save holds the training only while the state is copied to host memory; a thread then
writes, hashes, syncs and renames. The clock is read for `every_s` and the time limit alone. What
happened is said on stderr in one sentence, and to `holdfast.telemetry`.
"""

import importlib
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, cast

import torch

from holdfast import telemetry
from holdfast.checkpoint.errors import EX_RESTART, CheckpointError, FencedError, RestoreError, SaveError
from holdfast.checkpoint.fence import Fence
from holdfast.checkpoint.leaving import Leaving, Wish
from holdfast.checkpoint.pace import Pace
from holdfast.checkpoint.staging_torch import Stager
from holdfast.checkpoint.state_torch import (
    RNG,
    apply_local,
    apply_shared,
    is_sharded,
    is_shared,
    pack,
    take_local,
    take_shared,
    unpack,
)
from holdfast.checkpoint.store import CheckpointInfo, CheckpointStore, PendingCheckpoint, pinned_step, verify
from holdfast.checkpoint.world_torch import World

SHARED_FILE = "shared.pt"
LOCAL_FILE = "ranks.pt"


class Checkpointer:
    """Checkpoints of one training run in a folder.

    Construct it on every rank after `torch.distributed.init_process_group` (or without it).

    Args:
        folder: where checkpoints are published; made when missing. Seen by all ranks, unless `is_local`.
        keep: how many good checkpoints stay; older ones are removed after each save.
        every_steps: `due` is true at multiples of this.
        every_s: `due` is true about this often; the ranks agree on the step. May be given besides `every_steps`.
        mirrors: folders that get a copy after each save and are tried when the first place fails.
        is_local: the folder is on the publishing node's own disk, quick but lost with the node: a save is
            called durable once a mirror has it.
        async_: write in the background; at most one save is under way, a second waits for it.
        refuse_if: given the state, says why it must not be saved (such as `not_finite`), or None.
        signals: ask for a save at the next step boundary; SIGTERM also to leave. Default: SIGTERM and
            SIGUSR1, but SIGUSR1 alone under Holdfast's launcher, which asks through telemetry and means
            SIGTERM literally.
        before_end_s: save this long before Slurm's time limit, 0 for not.
        exits: when asked to leave, `save` ends the process with code 85 once the state is durable; when
            false, ask `leaving` after each save.
        environ: where `HOLDFAST_JOB_DIR`, `HOLDFAST_EPOCH`, `HOLDFAST_ATTEMPT`, `HOLDFAST_RESTORE_STEP` and
            `SLURM_JOB_END_TIME` are read.

    Raises:
        CheckpointError: the environment or an argument makes no sense.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        keep: int = 3,
        every_steps: int | None = None,
        every_s: float | None = None,
        mirrors: Sequence[Path | str] = (),
        is_local: bool = False,
        async_: bool = True,
        refuse_if: Callable[[Mapping[str, Any]], str | None] | None = None,
        signals: Iterable[signal.Signals] | None = None,
        before_end_s: float = 300.0,
        exits: bool = True,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._environ = os.environ if environ is None else environ
        if keep < 1:
            raise CheckpointError(f"keep={keep} must be 1 or more, or nothing would be left to resume from")
        if is_local and not mirrors:
            raise CheckpointError("is_local needs a mirror on shared storage, or nothing outlives the node")
        self.folder = Path(folder)
        self._keep = keep
        self._store = CheckpointStore(self.folder, mirrors=mirrors, fence=Fence.from_environment(self._environ))
        self._pace = Pace(every_steps, every_s)
        self._world = World()
        self._background: World | None = None
        self._is_local = is_local
        self._is_async = async_
        self._refuse_if = refuse_if
        self._exits = exits
        if signals is None:
            launched = "HOLDFAST_EPOCH" in self._environ
            signals = (signal.SIGUSR1,) if launched else (signal.SIGTERM, signal.SIGUSR1)
        self._leaving = Leaving(signals, self._environ, before_end_s)
        self._agreed = Wish.NOTHING
        self._stager = Stager()
        self._writer: threading.Thread | None = None
        self._outcome: BaseException | None = None
        self._in_flight: int | None = None
        self._durable_step = 0
        self._is_swept = False

    def restore(self, state: MutableMapping[str, Any], *, required: bool = False) -> int:
        """Load the newest good checkpoint into the objects of `state`, in place, on every rank.

        Each rank verifies what it loads by its hash; a checkpoint that fails on any rank is named on
        stderr, quarantined, and the next place or the next older one is tried, by all ranks together.
        `HOLDFAST_RESTORE_STEP` bounds the step from above.

        Args:
            state: the mapping later given to `save`; plain values in it are replaced.
            required: raise instead of starting from nothing.

        Returns:
            The step of the restored checkpoint, 0 when there is none.

        Raises:
            FencedError: a newer attempt has been started.
            RestoreError: a good checkpoint does not fit the program, or none was found and `required`.
            CheckpointError: the folder or the fence cannot be read.
        """
        with telemetry.phase("load"):
            refused: list[str] = []
            chosen: CheckpointInfo | None = None
            for info in self._world.ask_leader(self._list_candidates):
                problem = self._verified_by_all(info)
                if problem is None:
                    chosen = info
                    break
                refused.append(problem)
            if chosen is None and required:
                raise RestoreError("; ".join([f"no good checkpoint in {self.folder}", *refused]))
            if chosen is not None:
                self._load(chosen, state)
            step = chosen.step if chosen is not None else 0
            self._world.ask_leader(lambda: self._store.settle(step))
            if refused and self._world.leads:
                what = f"restored {chosen.path}" if chosen is not None else "none is left, starting from step 0"
                _say(f"{'; '.join(refused)}; {what}")
            self._durable_step = step
            self._pace.begin(step, time.monotonic())
            return step

    def due(self, step: int) -> bool:
        """Whether to save now; ask after every step, with the same steps on every rank.

        True by the pace asked for, and when any rank was asked to save or to leave (by the launcher
        through telemetry, a signal, or the end of the time limit). A wish is seen one step late, at the
        same step on every rank, so that no rank waits for one that has left.
        """
        wish = Wish.SAVE_AND_LEAVE if telemetry.evacuate_requested() else self._leaving.wish()
        self._agreed = Wish(self._world.strongest_so_far(wish))
        is_due = self._pace.due(step, time.monotonic, self._world.tell)
        return is_due or self._agreed is not Wish.NOTHING

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        """Save the state after `step` completed steps; with `async_` returns once the state is copied.

        A disk that fails does not stop the training: it is said on stderr, and the next save tries again.

        Raises:
            FencedError: a newer attempt has been started; the previous save may have found it out.
            SystemExit: code 85, when the job was asked to leave and the state is durable (see `exits`).
        """
        with telemetry.phase("checkpoint"):
            self._finish()
            self._store.fence.check(f"save step {step}")
            self._pace.saved(step, time.monotonic(), self._world.tell)
            if not self._is_refused(step, state):
                self._start(step, state)
                if not self._is_async:
                    self._finish()
            if self._exits and self.leaving():
                if self._world.leads:
                    _say(f"asked to leave: step {step} is saved, ending with code {EX_RESTART} (restart me)")
                raise SystemExit(EX_RESTART)

    def wait(self) -> bool:
        """Wait until the last save has ended, on every rank.

        Returns:
            True when it is published and durable, and when there was nothing to wait for.

        Raises:
            FencedError: it was refused because a newer attempt has been started.
        """
        if not self._world.leads:
            self._finish()
        return self._world.ask_leader(self._is_finished_well)

    def leaving(self) -> bool:
        """Whether all ranks agreed to leave and the state is durable; waits for it. Ask after a save."""
        return self._agreed is Wish.SAVE_AND_LEAVE and self.wait()

    def close(self) -> None:
        """Wait for the save under way, give signals back; call it on every rank at the end, or use `with`."""
        self.wait()
        self._world.close()
        self._leaving.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        # Peers may be gone: no collective here, only let a save that is under way reach the disk.
        self._leaving.release()
        if self._writer is not None:
            self._writer.join()

    def _list_candidates(self) -> list[CheckpointInfo]:
        found = self._store.candidates(not_after=pinned_step(self._environ))
        for info, reason in self._store.ruled_out():
            _say(f"{info.path} {reason}; it is ignored")
        return found

    def _verified_by_all(self, info: CheckpointInfo) -> str | None:
        """None when every rank finds the checkpoint good; otherwise why not, and it is quarantined."""
        is_shared_out = info.manifest is not None and info.manifest.layout == "sharded"
        verdict = verify(info.path, share=(self._world.rank, self._world.size) if is_shared_out else (0, 1))
        mine = None if verdict.ok else f"{info.path} on rank {self._world.rank}: {verdict.sentence}"
        found = [text for text in self._world.everyones(mine) if text]
        if not found:
            return None
        # What only another rank finds bad may be its disk or its mount: passed over, but left where it is.
        if self._world.leads and not verify(info.path).ok and (moved := self._store.quarantine(info)):
            return f"{found[0]}, kept as {moved.name}"
        return found[0]

    def _load(self, info: CheckpointInfo, state: MutableMapping[str, Any]) -> None:
        problem: RestoreError | None = None
        try:
            moved = self._load_shared(info, state)
            packed: list[bytes] = pickle.loads((info.path / LOCAL_FILE).read_bytes())  # noqa: S301 - the user's own
            rank = self._world.rank
            mine = unpack(packed[rank] if rank < len(packed) else packed[0])
            if rank >= len(packed):
                # Two ranks that draw the same random numbers would train on the same noise.
                del mine[RNG]
            missing = apply_local(state, {**moved, **mine})
            if self._world.leads and (missing or len(packed) != self._world.size):
                _say(_differences(info, missing, len(packed), self._world.size))
        except RestoreError as error:
            problem = RestoreError(f"{info.path}: {error}")
        except (OSError, RuntimeError, pickle.UnpicklingError, AttributeError, ImportError) as error:
            problem = RestoreError(f"{info.path} is good but cannot be loaded by this program: {error}")
        everyones = [text for text in self._world.everyones(str(problem) if problem else None) if text]
        if everyones:
            raise problem or RestoreError(everyones[0])

    def _load_shared(self, info: CheckpointInfo, state: MutableMapping[str, Any]) -> dict[str, Any]:
        """Load what ranks hold together; returns parts that are plain values in this program's state."""
        layout = info.manifest.layout if info.manifest is not None else "unknown"
        if layout == "sharded":
            _sharded().load_shards(state, info.path, self._world)
        elif layout == "replicated":
            parts = torch.load(info.path / SHARED_FILE, map_location="cpu", weights_only=False, mmap=True)
            if is_sharded(state):
                _sharded().load_full(state, parts)
            else:
                apply_shared(state, parts)
                # A dict that is filled with tensors later is a plain value as long as it is empty.
                return {name: part for name, part in parts.items() if name in state and not is_shared(state[name])}
        else:
            raise RestoreError(f"its layout {layout!r} is another program's")
        return {}

    def _is_refused(self, step: int, state: Mapping[str, Any]) -> bool:
        if self._refuse_if is None:
            return False
        reasons = [reason for reason in self._world.everyones(self._refuse_if(state)) if reason]
        if reasons and self._world.leads:
            _say(f"step {step} is not saved: {reasons[0]}; step {self._durable_step} stays the newest good one")
        return bool(reasons)

    def _start(self, step: int, state: Mapping[str, Any]) -> None:
        """Copy the state and hand it to the writing thread."""
        spread = is_sharded(state)
        packed = self._world.gather(pack(take_local(state))) or []
        if not spread and not self._world.leads:
            return
        write: Callable[[], None]
        if spread:
            if self._background is None:
                self._background = World()
            background, shards = self._background, self._stager.stage(_sharded().take_shards(state))

            def write() -> None:
                self._write_sharded(step, shards, packed, background)
        else:
            staged = self._stager.stage(take_shared(state))

            def write() -> None:
                self._write_replicated(step, staged, packed)

        self._in_flight = step
        if self._world.leads:
            telemetry.checkpoint(step, durable=False)
        self._writer = threading.Thread(target=self._guarded, args=(step, write), name=f"holdfast-save-{step}")
        self._writer.start()

    def _guarded(self, step: int, write: Callable[[], None]) -> None:
        """Body of the writing thread; its outcome is collected by `_finish`."""
        try:
            write()
        except OSError as error:
            self._outcome = self._store.save_error(step, error)
        except RuntimeError as error:
            # torch's zip writer reports a failed write of ours as its own RuntimeError.
            cause = error.__context__
            self._outcome = self._store.save_error(step, cause) if isinstance(cause, OSError) else error
        except BaseException as error:  # noqa: BLE001 - a thread has no caller: `_finish` raises it in the training
            self._outcome = error

    def _write_replicated(self, step: int, staged: dict[str, Any], packed: list[bytes]) -> None:
        pending = self._begin(step)
        try:
            with pending.create(SHARED_FILE) as file, _without_crc():
                torch.save(staged, cast("IO[bytes]", file))  # only write() and flush() are asked of it
            pending.add(file)
            published = self._publish(pending, packed, "replicated")
        except BaseException:  # whatever ended it, the draft goes, and the error goes on
            pending.abandon()
            raise
        self._after(step, published)

    def _write_sharded(self, step: int, shards: dict[str, Any], packed: list[bytes], world: World) -> None:
        pending: PendingCheckpoint | None = None

        def begin() -> Path:
            nonlocal pending
            pending = self._begin(step)
            return pending.path

        draft = world.ask_leader(begin)
        try:
            entries = _sharded().write_shards(shards, draft, world)
            if pending is not None:
                pending.add_entries(entries)
            world.ask_leader(lambda: self._publish(cast("PendingCheckpoint", pending), packed, "sharded"))
        except BaseException:  # whatever ended it, the draft goes, and the error goes on
            if pending is not None:
                pending.abandon()
            raise
        if pending is not None and pending.published is not None:
            self._after(step, pending.published)

    def _begin(self, step: int) -> PendingCheckpoint:
        if not self._is_swept:
            self._store.sweep()
            self._is_swept = True
        return self._store.begin(step)

    def _publish(self, pending: PendingCheckpoint, packed: list[bytes], layout: str) -> Path:
        pending.write_bytes(LOCAL_FILE, pickle.dumps(packed))
        attempt = self._environ.get("HOLDFAST_ATTEMPT", str(self._store.fence.epoch))
        published = pending.publish(world_size=self._world.size, attempt=attempt, layout=layout)
        if not self._is_local:
            self._durable_step = pending.step
            telemetry.checkpoint(pending.step, durable=True)
        return published

    def _after(self, step: int, published: Path) -> None:
        """Copies and clearing away, on the leader, once the checkpoint is published."""
        for mirror in self._store.mirrors:
            try:
                self._store.copy(published, mirror)
            except FencedError:
                raise
            except (OSError, CheckpointError) as error:
                _say(f"the mirror {mirror} did not get {published.name}: {error}; training goes on")
                continue
            if self._durable_step != step:
                self._durable_step = step
                telemetry.checkpoint(step, durable=True)
        self._store.prune(self._keep)

    def _is_finished_well(self) -> bool:
        asked = self._in_flight
        self._finish()
        return asked is None or self._durable_step >= asked

    def _finish(self) -> None:
        """Collect the save under way; only fencing and programming errors reach the training."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        self._in_flight = None
        outcome, self._outcome = self._outcome, None
        if isinstance(outcome, SaveError):
            if self._world.leads:
                _say(f"{outcome}; training goes on, step {self._durable_step} stays the newest good one")
        elif outcome is not None:
            raise outcome


def _say(sentence: str) -> None:
    """One line on stderr, where the user's log and Holdfast's matcher read it."""
    print(f"holdfast.checkpoint: {sentence}", file=sys.stderr, flush=True)  # noqa: T201 - the user's log is the place


@contextmanager
def _without_crc() -> Iterator[None]:
    """Have torch leave out its CRC-32: it holds the training's interpreter lock for milliseconds per tensor.

    The manifest's hash is the stronger one, and `torch.load` does not look at the CRC. The setting is the
    process's, so a `torch.save` of the program in these seconds goes without one too.
    """
    former = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(compute_crc32=False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(former)


def _sharded() -> Any:
    """The module for sharded state, imported when needed: DCP would add half a second to every start."""
    return importlib.import_module("holdfast.checkpoint.sharded_torch")


def _differences(info: CheckpointInfo, missing: list[str], then: int, now: int) -> str:
    parts: list[str] = []
    if missing:
        parts.append(f"holds nothing for {', '.join(missing)}, which keep their present values")
    if then != now:
        parts.append(f"was saved by {then} ranks and is loaded by {now}, new ranks take rank 0's data position")
    return f"{info.path} " + " and ".join(parts)
