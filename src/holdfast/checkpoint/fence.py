"""The epoch fence: who may publish checkpoints, and which of them a later attempt may believe.

The launcher writes the number of the newest attempt into `<HOLDFAST_JOB_DIR>/epoch` before that
attempt starts. A writer reads it before it begins and again right before it publishes (`Fence.check`).
A check followed by a rename can always be overtaken, so readers do not rely on it: the first restore
or save of an attempt records which checkpoints existed then (`Seal`), and later attempts of the same
job believe nothing that an older attempt published after that record was made. No clock is compared
anywhere; the order is that of the seals. The reasons stand in docs/decisions/010-checkpoint-fence.md.
"""

import json
import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.checkpoint.errors import CheckpointError, FencedError
from holdfast.checkpoint.manifest import digest

EPOCH_FILE = "epoch"
SEALS_FOLDER = "checkpoint-seals"


@dataclass(frozen=True, slots=True)
class Seal:
    """What an attempt found when it began.

    Args:
        epoch: the attempt's fencing epoch.
        writer: token that the attempt's own manifests carry.
        admits: name -> hash of the manifest, for every checkpoint that was published by then.
        base_step: the step this attempt resumed from (0: from nothing), None when it never restored.
    """

    epoch: int
    writer: str
    admits: Mapping[str, str]
    base_step: int | None = None


def inadmissible(name: str, step: int, manifest_hash: str, writer: str, seals: Iterable[Seal]) -> str | None:
    """Why a checkpoint must be ignored, as a clause, or None when it may be restored.

    A checkpoint may be restored when every attempt that began after its writer found it already
    published, and none of them went back to a step before it.

    Args:
        name: folder name of the checkpoint.
        step: its step.
        manifest_hash: hash of its manifest's bytes.
        writer: token in its manifest.
        seals: the seals of this job up to the reader's own epoch, in any order.
    """
    ordered = sorted(seals, key=lambda seal: seal.epoch)
    own = [seal.epoch for seal in ordered if seal.writer == writer]
    for seal in ordered:
        if own and seal.epoch <= own[0]:
            continue
        if seal.admits.get(name) != manifest_hash:
            return f"was published after attempt epoch {seal.epoch} had taken over"
        if seal.base_step is not None and step > seal.base_step:
            return f"was left behind when attempt epoch {seal.epoch} went back to step {seal.base_step}"
    return None


@dataclass(frozen=True, slots=True)
class Fence:
    """This attempt's epoch, and the job's folder where the newest epoch is written down.

    Args:
        job_dir: folder of the job, or None when there is no launcher and so no fence.
        epoch: this attempt's epoch (0 without a launcher).
    """

    job_dir: Path | None
    epoch: int

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "Fence":
        """Read `HOLDFAST_JOB_DIR` and `HOLDFAST_EPOCH`.

        Without `HOLDFAST_EPOCH` an attempt adopts the epoch the fence shows when it starts.

        Raises:
            CheckpointError: the epoch is not a whole number.
        """
        folder = environ.get("HOLDFAST_JOB_DIR", "").strip()
        job_dir = Path(folder) if folder else None
        text = environ.get("HOLDFAST_EPOCH", "").strip()
        if not text:
            return cls(job_dir, cls(job_dir, 0).newest())
        if not text.isdecimal():
            raise CheckpointError(f"HOLDFAST_EPOCH={text!r} must be a whole number, 0 or more")
        return cls(job_dir, int(text))

    def newest(self) -> int:
        """The newest epoch that the launcher has written down; this attempt's own when there is no fence.

        Raises:
            CheckpointError: the job's folder or the fence file cannot be read, so nothing can be proven.
        """
        if self.job_dir is None:
            return self.epoch
        path = self.job_dir / EPOCH_FILE
        try:
            text = path.read_text("ascii").strip()
        except FileNotFoundError:
            if self.job_dir.is_dir():
                return self.epoch
            raise CheckpointError(f"the job folder {self.job_dir} (HOLDFAST_JOB_DIR) does not exist") from None
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"the epoch fence {path} cannot be read: {error}") from error
        if not text.isdecimal():
            raise CheckpointError(f"the epoch fence {path} holds {text[:40]!r} instead of a whole number")
        return int(text)

    def check(self, doing: str) -> None:
        """Return when this attempt is still the newest.

        Raises:
            FencedError: a newer attempt has been started.
            CheckpointError: the fence cannot be read.
        """
        newest = self.newest()
        if newest > self.epoch:
            raise FencedError(
                f"refused to {doing}: this attempt has epoch {self.epoch}, but epoch {newest} has been started since"
            )

    def seals(self, folder: Path) -> tuple[Seal, ...]:
        """The seals of this job over one checkpoint folder, of this attempt and older ones, oldest first."""
        if self.job_dir is None:
            return ()
        found: list[Seal] = []
        for path in sorted(self._seal_folder(folder).glob("e*.json")):
            seal = _read_seal(path)
            if seal.epoch <= self.epoch:
                found.append(seal)
        return tuple(sorted(found, key=lambda seal: seal.epoch))

    def seal(self, folder: Path, admits: Mapping[str, str]) -> Seal:
        """Record what is published now, once per attempt; a second call returns the first record.

        Args:
            folder: the checkpoint folder.
            admits: name -> manifest hash of every checkpoint published there or in a mirror.

        Raises:
            FencedError: a newer attempt has been started meanwhile.
            CheckpointError: the seal cannot be written.
        """
        token = secrets.token_hex(8)
        if self.job_dir is None:
            return Seal(self.epoch, token, dict(admits))
        content = {"version": 1, "epoch": self.epoch, "writer": token, "folder": str(folder), "admits": dict(admits)}
        path = self._seal_folder(folder) / f"e{self.epoch:06d}.json"
        _write_once(path, json.dumps(content, indent=1).encode())
        self.check("begin")
        return _read_seal(path)

    def settle(self, folder: Path, base_step: int) -> None:
        """Record the step this attempt resumed from; only the first call of an attempt counts."""
        if self.job_dir is not None:
            _write_once(self._seal_folder(folder) / f"e{self.epoch:06d}.base", str(base_step).encode())

    def _seal_folder(self, folder: Path) -> Path:
        if self.job_dir is None:
            raise CheckpointError("there is no job folder to keep seals in")
        key = digest(os.fsencode(os.path.realpath(folder)))[:16]
        return self.job_dir / SEALS_FOLDER / key


def _read_seal(path: Path) -> Seal:
    try:
        raw = json.loads(path.read_bytes())
        base = path.with_suffix(".base")
        base_step = int(base.read_text("ascii")) if base.exists() else None
        return Seal(int(raw["epoch"]), str(raw["writer"]), dict(raw["admits"]), base_step)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"the checkpoint seal {path} cannot be read: {error}") from error


def _write_once(path: Path, content: bytes) -> None:
    """Create a file completely or leave the one that is already there: link(2) never replaces."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            return
        finally:
            draft.unlink()
    except OSError as error:
        raise CheckpointError(f"the checkpoint seal {path} cannot be written: {error}") from error
