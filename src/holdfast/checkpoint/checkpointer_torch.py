"""`Checkpointer`: what a PyTorch training script calls to save, and to resume from the newest good state.

Called by user code on every rank, in the same order on each (its calls are collective like the
training's own). A save holds the training only while the state is copied to host memory; a thread of
the publishing rank then writes, hashes, syncs and renames. The clock is read for `every_s` alone.
What happened is said on stderr in one sentence, and to `holdfast.telemetry` when that is there.
"""

import importlib
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, cast

import torch

from holdfast.checkpoint.errors import CheckpointError, FencedError, RestoreError, SaveError
from holdfast.checkpoint.fence import Fence
from holdfast.checkpoint.pace import Pace
from holdfast.checkpoint.staging_torch import Stager
from holdfast.checkpoint.state_torch import RNG, apply_local, apply_shared, pack, take_local, take_shared, unpack
from holdfast.checkpoint.store import CheckpointInfo, CheckpointStore, PendingCheckpoint, verify
from holdfast.checkpoint.world_torch import World

__all__ = ["Checkpointer"]

SHARED_FILE = "shared.pt"
LOCAL_FILE = "ranks.pt"


class Checkpointer:
    """Checkpoints of one training run in a folder.

    Construct it on every rank after `torch.distributed.init_process_group` (or without it).

    Args:
        folder: where checkpoints are published; shared by all nodes, made when missing.
        keep: how many good checkpoints stay; older ones are removed after each save.
        every_steps: `due` is true at multiples of this.
        every_s: `due` is true about this often; the ranks agree on the step. May be given besides `every_steps`.
        mirrors: folders that get a copy after each save and are tried when the first place fails.
        async_: write in the background; at most one save is under way, a second waits for it.
        environ: where `HOLDFAST_JOB_DIR`, `HOLDFAST_EPOCH`, `HOLDFAST_ATTEMPT` and `HOLDFAST_RESTORE_STEP` are read.

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
        async_: bool = True,
        environ: MutableMapping[str, str] | None = None,
    ) -> None:
        self._environ = os.environ if environ is None else environ
        if keep < 1:
            raise CheckpointError(f"keep={keep} must be 1 or more, or nothing would be left to resume from")
        self.folder = Path(folder)
        self.keep = keep
        self.world = World()
        self._store = CheckpointStore(self.folder, mirrors=mirrors, fence=Fence.from_environment(self._environ))
        self._pace = Pace(every_steps, every_s)
        self._is_async = async_
        self._stager = Stager()
        self._writer: threading.Thread | None = None
        self._outcome: BaseException | None = None
        self._in_flight: int | None = None
        self._durable_step = 0
        self._is_swept = False

    def restore(self, state: MutableMapping[str, Any], *, required: bool = False) -> int:
        """Load the newest good checkpoint into the objects of `state`, in place, on every rank.

        Each rank verifies the hashes of what it loads; a checkpoint that fails on any rank is named on
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
        with _phase("load"):
            refused: list[str] = []
            choices = self._from_leader(self._list_candidates)
            chosen: CheckpointInfo | None = None
            for info in choices:
                problem = self._verified_by_all(info)
                if problem is None:
                    chosen = info
                    break
                refused.append(problem)
            if chosen is None and required:
                raise RestoreError(f"no good checkpoint in {self.folder}" + "".join(f"; {text}" for text in refused))
            if chosen is not None:
                self._load(chosen, state)
            step = chosen.step if chosen is not None else 0
            self._from_leader(lambda: self._store.settle(step))
            if refused and self.world.leads:
                what = (
                    f"restored {chosen.path}" if chosen is not None else "no good checkpoint is left, starting from 0"
                )
                _say(f"{'; '.join(refused)}; {what}")
            self._durable_step = step
            self._pace.begin(step, self._now())
            return step

    def due(self, step: int) -> bool:
        """Whether `step` should be saved; ask after every step, with the same steps on every rank."""
        return self._pace.due(step, self._now, self.world.tell)

    def save(self, step: int, state: MutableMapping[str, Any]) -> None:
        """Save the state after `step` completed steps; with `async_` returns once the state is copied.

        A disk that fails does not stop the training: it is said on stderr, and the next save tries again.

        Raises:
            FencedError: a newer attempt has been started; the previous save may have found it out.
        """
        with _phase("checkpoint"):
            self._finish()
            self._store.fence.check(f"save step {step}")
            packed = self.world.gather(pack(take_local(state)))
            self._pace.saved(step, self._now(), self.world.tell)
            if not self.world.leads:
                return
            staged = self._stager.stage(take_shared(state))
            self._in_flight = step
            _told(step, durable=False)
            write = threading.Thread(
                target=self._write, args=(step, staged, packed or []), name=f"holdfast-save-{step}", daemon=False
            )
            self._writer = write
            write.start()
            if not self._is_async:
                self._finish()

    def wait(self) -> bool:
        """Wait until the last save has ended, on every rank.

        Returns:
            True when the last save is published and durable (also when nothing was saved yet).

        Raises:
            FencedError: it was refused because a newer attempt has been started.
        """

        def finish() -> bool:
            asked = self._in_flight
            self._finish()
            return asked is None or self._durable_step >= asked

        return bool(self._from_leader(finish))

    def should_stop(self, requested: bool = False) -> bool:
        """Whether the job should save and leave, agreed by all ranks; ask after every step.

        True one call after any rank was asked to leave (by the launcher through telemetry, or by
        `requested`), on every rank at the same step, so that no rank waits for one that has left.
        """
        return self.world.any_so_far(requested or _evacuation())

    def close(self) -> None:
        """Wait for the save under way; call it on every rank at the end, or use the `with` statement."""
        self.wait()
        self.world.settle()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        elif self._writer is not None:
            # Peers may be gone: no collective here, only let a save that is under way reach the disk.
            self._writer.join()

    def _now(self) -> float:
        return time.monotonic()

    def _list_candidates(self) -> list[CheckpointInfo]:
        pin = self._environ.get("HOLDFAST_RESTORE_STEP", "").strip()
        if pin and not pin.isdecimal():
            raise CheckpointError(f"HOLDFAST_RESTORE_STEP={pin!r} must be a whole number, 0 or more")
        found = self._store.candidates(not_after=int(pin) if pin else None)
        for info, reason in self._store.ruled_out():
            _say(f"{info.path} {reason}; it is ignored")
        return found

    def _verified_by_all(self, info: CheckpointInfo) -> str | None:
        """None when every rank finds the checkpoint good; otherwise why not, and it is quarantined."""
        verdict = verify(info.path)
        found = [text for text in self.world.everyones(None if verdict.ok else verdict.sentence) if text]
        if not found:
            return None
        if self.world.leads and not verdict.ok:
            moved = self._store.quarantine(info)
            return f"{info.path.parent}: {found[0]}" + (f", kept as {moved.name}" if moved else "")
        return f"{info.path.parent}: {found[0]}"

    def _load(self, info: CheckpointInfo, state: MutableMapping[str, Any]) -> None:
        problem: RestoreError | None = None
        try:
            shared = torch.load(info.path / SHARED_FILE, map_location="cpu", weights_only=False, mmap=True)
            apply_shared(state, shared)
            packed: list[bytes] = pickle.loads((info.path / LOCAL_FILE).read_bytes())  # noqa: S301 - the user's own
            rank = self.world.rank
            mine = unpack(packed[rank] if rank < len(packed) else packed[0])
            if rank >= len(packed):
                # Two ranks that draw the same random numbers would train on the same noise.
                del mine[RNG]
            missing = apply_local(state, mine)
            if self.world.leads and (missing or len(packed) != self.world.size):
                _say(_differences(info, missing, len(packed), self.world.size))
        except RestoreError as error:
            problem = RestoreError(f"{info.path}: {error}")
        except (OSError, RuntimeError, pickle.UnpicklingError, AttributeError, ImportError) as error:
            problem = RestoreError(f"{info.path} is good but cannot be loaded by this program: {error}")
        everyones = [text for text in self.world.everyones(str(problem) if problem else None) if text]
        if everyones:
            raise problem or RestoreError(everyones[0])

    def _write(self, step: int, staged: dict[str, Any], packed: list[bytes]) -> None:
        """Body of the writing thread; its outcome is collected by `_finish`."""
        pending: PendingCheckpoint | None = None
        try:
            if not self._is_swept:
                self._store.sweep()
                self._is_swept = True
            pending = self._store.begin(step)
            with pending.create(SHARED_FILE) as file:
                torch.save(staged, cast("IO[bytes]", file))  # only write() and flush() are asked of it
            pending.add(file)
            pending.write_bytes(LOCAL_FILE, pickle.dumps(packed))
            attempt = self._environ.get("HOLDFAST_ATTEMPT", str(self._store.fence.epoch))
            published = pending.publish(world_size=self.world.size, attempt=attempt, layout="replicated")
            self._durable_step = step
            _told(step, durable=True)
            self._copy_to_mirrors(published)
            self._store.prune(self.keep)
        except OSError as error:
            self._outcome = self._store.save_error(step, error)
        except RuntimeError as error:
            # torch's zip writer reports a failed write of ours as its own RuntimeError.
            cause = error.__context__
            self._outcome = self._store.save_error(step, cause) if isinstance(cause, OSError) else error
        except BaseException as error:  # noqa: BLE001 - a thread has no caller: `_finish` raises it in the training
            self._outcome = error
        finally:
            if pending is not None and self._durable_step != step:
                pending.abandon()

    def _copy_to_mirrors(self, published: Path) -> None:
        for mirror in self._store.mirrors:
            try:
                self._store.copy(published, mirror)
            except FencedError:
                raise
            except (OSError, CheckpointError) as error:
                _say(f"the mirror {mirror} did not get {published.name}: {error}; the checkpoint itself is durable")

    def _finish(self) -> None:
        """Collect the save under way; only fencing and programming errors reach the training."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        self._in_flight = None
        outcome, self._outcome = self._outcome, None
        if isinstance(outcome, SaveError):
            _say(f"{outcome}; training goes on, the newest good checkpoint is that of step {self._durable_step}")
        elif outcome is not None:
            raise outcome

    def _from_leader(self, ask: Callable[[], Any]) -> Any:
        """Do something on the leader; its result, or its error, reaches every rank."""
        answer: Any = None
        failure: CheckpointError | None = None
        if self.world.leads:
            try:
                answer = ask()
            except CheckpointError as error:
                failure = error
        answer, failure = self.world.tell((answer, failure))
        if failure is not None:
            raise failure
        return answer


def _differences(info: CheckpointInfo, missing: list[str], then: int, now: int) -> str:
    parts: list[str] = []
    if missing:
        parts.append(f"holds nothing for {', '.join(missing)}, which keep their present values")
    if then != now:
        parts.append(
            f"was saved by {then} ranks and is loaded by {now}, where a new rank takes the data position of rank 0"
        )
    return f"{info.path} " + " and ".join(parts)


def _say(sentence: str) -> None:
    print(f"holdfast.checkpoint: {sentence}", file=sys.stderr, flush=True)  # noqa: T201 - the user's log is the place


def _telemetry() -> Any:
    """The telemetry module, or None where it is not installed beside this package."""
    try:
        return importlib.import_module("holdfast.telemetry")
    except ImportError:
        return None


def _told(step: int, *, durable: bool) -> None:
    telemetry = _telemetry()
    if telemetry is not None:
        telemetry.checkpoint(step, durable=durable)


def _phase(name: str) -> AbstractContextManager[Any]:
    telemetry = _telemetry()
    return telemetry.phase(name) if telemetry is not None else nullcontext()


def _evacuation() -> bool:
    telemetry = _telemetry()
    return telemetry is not None and bool(telemetry.evacuate_requested())
