"""A folder of checkpoints on a file system: write one atomically, list, verify, prune, quarantine.

Called by the torch checkpointer, by the torch-free workload and by the `checkpoints` commands. Layout:

    DIR/step-000000120.e000002/manifest.json     a published checkpoint (step 120, epoch 2)
    DIR/step-000000120.e000002/...               its files, all listed in the manifest
    DIR/.tmp-step-000000130.e000002-9f3c.../     being written, or left by a writer that died
    DIR/bad-step-000000110.e000001/              quarantined: failed verification, kept for a person

A checkpoint is complete exactly when its name says so: every file and the manifest are on disk (fsync)
before the folder is renamed, and the parent folder is synced after. The clock is read in one place, for
the manifest's `saved_at`, which nothing compares.
"""

import os
import secrets
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.checkpoint.claim import claim
from holdfast.checkpoint.errors import CheckpointError, SaveError
from holdfast.checkpoint.fence import Fence, Seal, inadmissible
from holdfast.checkpoint.files import HashingFile, copy_hashed, fsync_folder, hash_file, is_full, open_file, rename_bad
from holdfast.checkpoint.manifest import (
    MANIFEST_NAME,
    FileEntry,
    Manifest,
    ManifestError,
    Problem,
    Verdict,
    checkpoint_name,
    decode,
    digest,
    encode,
    parse_name,
)

MANIFEST_BYTES_MAX = 64 << 20
TMP, OLD = ".tmp-", ".old-"


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """One published checkpoint as a listing shows it.

    Args:
        path: its folder.
        step: completed steps.
        epoch: fencing epoch of the attempt that wrote it.
        manifest: None when it cannot be read.
        manifest_hash: hash of the manifest's bytes, empty when it cannot be read.
        problem: None when the quick check passes, otherwise one clause.
    """

    path: Path
    step: int
    epoch: int
    manifest: Manifest | None
    manifest_hash: str
    problem: str | None

    @property
    def name(self) -> str:
        """Folder name."""
        return self.path.name

    @property
    def ok(self) -> bool:
        """True when manifest and sizes are right; hashes are checked by `verify`."""
        return self.problem is None

    @property
    def layout(self) -> str:
        """How the state lies in the files."""
        return self.manifest.layout if self.manifest is not None else "holdfast"

    @property
    def size(self) -> int | None:
        """Bytes of all files, None when the manifest cannot be read."""
        return self.manifest.size if self.manifest is not None else None

    @property
    def saved_at(self) -> float:
        """Unix seconds by the writer's clock; 0.0 when the manifest cannot be read."""
        return self.manifest.saved_at if self.manifest is not None else 0.0


def scan(folder: Path | str) -> list[CheckpointInfo]:
    """Published checkpoints of a folder, newest step first; a missing folder holds none.

    Each gets the quick check (manifest decodes, every file is there with its size).

    Raises:
        CheckpointError: the folder exists and cannot be read.
    """
    root = Path(folder)
    try:
        paths = [path for path in root.iterdir() if parse_name(path.name)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"the checkpoint folder {root} cannot be read: {error}") from error
    found = [info for path in paths if (info := _info(path)) is not None]
    return sorted(found, key=lambda info: (info.step, info.epoch), reverse=True)


def verify(checkpoint: Path | str, *, full: bool = True, share: tuple[int, int] = (0, 1)) -> Verdict:
    """Check one checkpoint against its manifest.

    Args:
        checkpoint: its folder.
        full: also hash the files, not only compare sizes.
        share: (index, count): hash only every count-th file from index on, when several ranks divide
            the work; names and sizes are checked by each of them.
    """
    path = Path(checkpoint)
    level = "full" if full else "quick"
    manifest, _, problem = _read_manifest(path)
    if manifest is None:
        return Verdict(path.name, level, None, (problem,) if problem else ())
    problems: list[Problem] = [] if problem is None else [problem]
    bytes_read = 0
    index, count = share
    for position, entry in enumerate(manifest.files):
        hashed = full and position % count == index
        found, read = _check_file(path, entry, hashed=hashed)
        bytes_read += read
        if found is not None:
            problems.append(found)
    return Verdict(path.name, level, manifest, tuple(problems), bytes_read)


def pinned_step(environ: Mapping[str, str]) -> int | None:
    """The newest step that may be restored (`HOLDFAST_RESTORE_STEP`), None for any.

    Raises:
        CheckpointError: it is not a whole number.
    """
    pin = environ.get("HOLDFAST_RESTORE_STEP", "").strip()
    if pin and not pin.isdecimal():
        raise CheckpointError(f"HOLDFAST_RESTORE_STEP={pin!r} must be a whole number, 0 or more")
    return int(pin) if pin else None


class PendingCheckpoint:
    """A checkpoint being written; nothing of it is visible until `publish`."""

    def __init__(self, store: "CheckpointStore", step: int, writer: str) -> None:
        self.step = step
        self._store = store
        self._writer = writer
        self._entries: dict[str, FileEntry] = {}
        name = checkpoint_name(step, store.fence.epoch)
        self.path = store.folder / f"{TMP}{name}-{secrets.token_hex(4)}"
        self.published: Path | None = None
        self.path.mkdir(parents=True)

    def create(self, path: str) -> HashingFile:
        """A new file of the checkpoint, open for writing; pass it to `add` when it is closed."""
        return HashingFile(self.path / path)

    def add(self, file: HashingFile) -> None:
        """Put a closed file on the manifest."""
        entry = file.entry(self.path)
        self._entries[entry.path] = entry

    def add_entries(self, entries: Iterable[FileEntry]) -> None:
        """Put files on the manifest that were written, synced and hashed elsewhere (another rank)."""
        self._entries.update({entry.path: entry for entry in entries})

    def write_bytes(self, path: str, content: bytes) -> None:
        """Write one small file and put it on the manifest."""
        with self.create(path) as file:
            file.write(content)
        self.add(file)

    def publish(self, *, world_size: int, attempt: str, layout: str, extra: dict[str, Any] | None = None) -> Path:
        """Write the manifest, look at the fence once more, and rename into place.

        Returns:
            The published folder. It is durable when this returns.

        Raises:
            FencedError: a newer attempt has been started; what was written is removed.
            OSError: the file system failed; what was written is removed.
        """
        manifest = Manifest(
            step=self.step,
            epoch=self._store.fence.epoch,
            attempt=attempt,
            world_size=world_size,
            saved_at=time.time(),
            writer=self._writer,
            layout=layout,
            files=tuple(sorted(self._entries.values(), key=lambda entry: entry.path)),
            extra=extra or {},
        )
        with HashingFile(self.path / MANIFEST_NAME) as file:
            file.write(encode(manifest))
        for folder in {(self.path / entry.path).parent for entry in manifest.files} | {self.path}:
            fsync_folder(folder)
        self._store.fence.check(f"publish the checkpoint of step {self.step}")
        self.published = _rename_into_place(self.path, self._store.folder / manifest.name)
        return self.published

    def abandon(self) -> None:
        """Remove what was written, unless published; never fails, since it runs while another error is under way."""
        if self.published is None:
            shutil.rmtree(self.path, ignore_errors=True)


class CheckpointStore:
    """The checkpoints of one job in a folder and its mirrors.

    Only the rank that publishes, and the rank that decides on a restore, hold one; other ranks are told.

    Args:
        folder: where checkpoints are published, made when missing.
        mirrors: folders that hold copies; a checkpoint is found in them when the first place fails.
        fence: this attempt's epoch and the job's fence.
    """

    def __init__(self, folder: Path | str, *, mirrors: Sequence[Path | str] = (), fence: Fence | None = None) -> None:
        self.folder = Path(folder)
        self.mirrors = tuple(Path(mirror) for mirror in mirrors)
        self.fence = fence if fence is not None else Fence.from_environment(os.environ)
        self._seal: Seal | None = None

    def begin(self, step: int) -> PendingCheckpoint:
        """Start writing the checkpoint of a step.

        Raises:
            FencedError: a newer attempt has been started.
            SaveError: the folder cannot be written, or another job saves into it.
        """
        self.fence.check(f"save step {step}")
        writer = self._sealed().writer
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            other = claim(self.folder, self.fence.job_dir)
            if other is None:
                return PendingCheckpoint(self, step, writer)
        except OSError as error:
            raise self.save_error(step, error) from error
        raise SaveError(
            f"the checkpoint of step {step} was not saved in {self.folder}: {other} saves there; "
            "give each job a folder of its own"
        )

    def save_error(self, step: int, error: OSError) -> SaveError:
        """The sentence for a file system that failed while a step was being saved."""
        why = "no space is left on its file system" if is_full(error) else str(error)
        return SaveError(f"the checkpoint of step {step} was not saved in {self.folder}: {why}")

    def candidates(self, *, not_after: int | None = None) -> list[CheckpointInfo]:
        """What a restore may load, best first: newest step, then newest epoch, then nearest place.

        Checkpoints that fail the quick check stay in the list (the caller says so and goes on); those
        that the fence rules out do not.

        Args:
            not_after: the newest step allowed (`HOLDFAST_RESTORE_STEP`), None for any.

        Raises:
            FencedError: a newer attempt has been started.
            CheckpointError: a folder cannot be read.
        """
        self.fence.check("restore")
        self._sealed()
        allowed, _ = self._judged()
        return [info for info in allowed if not_after is None or info.step <= not_after]

    def ruled_out(self) -> list[tuple[CheckpointInfo, str]]:
        """Checkpoints that the fence rules out, each with the reason as a clause."""
        return self._judged()[1]

    def settle(self, base_step: int) -> None:
        """Record the step that was restored (0 for none), so that what lies after it stays left behind."""
        self.fence.settle(self.folder, base_step)

    def newest_good(self, *, full: bool = True) -> CheckpointInfo | None:
        """The first candidate that verifies, or None; quarantines nothing."""
        return next((info for info in self.candidates() if verify(info.path, full=full).ok), None)

    def quarantine(self, info: CheckpointInfo) -> Path | None:
        """Rename a bad checkpoint to `bad-...`; None when the place cannot be written (then it stays)."""
        try:
            return rename_bad(info.path)
        except OSError:
            return None

    def prune(self, keep: int) -> list[str]:
        """Remove all but the `keep` newest good checkpoints from the folder and each mirror.

        Nothing goes while fewer than `keep` good ones exist in that place, and what fails the quick check
        is left for the next restore to name. The fence is looked at before each removal: an attempt that
        is over must not clear away what its successor may be loading.

        Returns:
            Names removed.
        """
        removed: list[str] = []
        seals = self.fence.seals(self.folder)
        for root in (self.folder, *self.mirrors):
            sound = [info for info in _scan_or_nothing(root) if info.ok]
            good = [info.name for info in sound if _reason(info, seals) is None]
            if len(good) < keep or claim(root, self.fence.job_dir) is not None:
                continue
            for info in sound:
                if info.name in good[:keep]:
                    continue
                self.fence.check("prune")
                if _remove(info.path):
                    removed.append(info.name)
        return removed

    def sweep(self) -> list[str]:
        """Remove unfinished writes of this and older epochs, left by writers that died or are cut off.

        Where another job saves nothing is removed: what is unfinished there is under way.
        """
        removed: list[str] = []
        for root in (self.folder, *self.mirrors):
            if claim(root, self.fence.job_dir) is not None:
                continue
            for path in _leftovers(root, self.fence.epoch):
                shutil.rmtree(path, ignore_errors=True)
                removed.append(path.name)
        return removed

    def copy(self, published: Path, root: Path) -> Path:
        """Copy a published checkpoint into another folder, with the same care as the first write.

        Raises:
            FencedError: a newer attempt has been started.
            SaveError: a file changed on the way, or another job saves into this mirror.
            OSError: either side failed.
        """
        if root in self.mirrors and root.is_dir() and (other := claim(root, self.fence.job_dir)) is not None:
            raise SaveError(f"{other} saves into {root}; give each job a folder of its own")
        manifest, _, problem = _read_manifest(published)
        if manifest is None or problem is not None:
            raise SaveError(f"{published} is not copied to {root}: {problem}")
        self.fence.check(f"copy {published.name}")
        draft = root / f"{TMP}{published.name}-{secrets.token_hex(4)}"
        try:
            draft.mkdir(parents=True)
            for entry in manifest.files:
                if copy_hashed(published / entry.path, draft / entry.path) != (entry.size, entry.xxh3_128):
                    raise SaveError(f"{published / entry.path} changed after it was saved; not copied to {root}")
            copy_hashed(published / MANIFEST_NAME, draft / MANIFEST_NAME)
            for folder in {(draft / entry.path).parent for entry in manifest.files} | {draft}:
                fsync_folder(folder)
            self.fence.check(f"publish the copy of {published.name}")
            return _rename_into_place(draft, root / published.name)
        except (OSError, CheckpointError):
            shutil.rmtree(draft, ignore_errors=True)
            raise

    def _sealed(self) -> Seal:
        if self._seal is None:
            listed = [info for root in (self.folder, *self.mirrors) for info in _scan_or_nothing(root)]
            self._seal = self.fence.seal(self.folder, {info.name: info.manifest_hash for info in reversed(listed)})
        return self._seal

    def _judged(self) -> tuple[list[CheckpointInfo], list[tuple[CheckpointInfo, str]]]:
        allowed: list[tuple[int, CheckpointInfo]] = []
        refused: list[tuple[CheckpointInfo, str]] = []
        seals = self.fence.seals(self.folder)
        for place, root in enumerate((self.folder, *self.mirrors)):
            listed = scan(root) if place == 0 else _scan_or_nothing(root)
            for info in listed:
                reason = _reason(info, seals)
                if reason is None:
                    allowed.append((place, info))
                else:
                    refused.append((info, reason))
        allowed.sort(key=lambda item: (-item[1].step, -item[1].epoch, item[0]))
        return [info for _, info in allowed], refused


def _reason(info: CheckpointInfo, seals: Sequence[Seal]) -> str | None:
    """Why the fence rules a checkpoint out, or None."""
    if info.manifest is None:
        # Nothing can be said of its origin; it fails verification anyway and is named there.
        return None
    return inadmissible(info.name, info.step, info.manifest_hash, info.manifest.writer, seals)


def _info(path: Path) -> CheckpointInfo | None:
    """The listing's line for one folder; None when it was pruned while being looked at."""
    parsed = parse_name(path.name)
    if parsed is None or not path.is_dir():
        return None
    manifest, manifest_hash, problem = _read_manifest(path)
    if manifest is not None and problem is None:
        problem = next((p for entry in manifest.files if (p := _check_file(path, entry, hashed=False)[0])), None)
    if problem is not None and not path.exists():
        return None
    return CheckpointInfo(path, *parsed, manifest, manifest_hash, str(problem) if problem else None)


def _read_manifest(path: Path) -> tuple[Manifest | None, str, Problem | None]:
    """(manifest, hash of its bytes, problem); a manifest that belongs elsewhere comes with a problem."""
    try:
        with open_file(path / MANIFEST_NAME) as file:
            content = file.read(MANIFEST_BYTES_MAX)
    except (FileNotFoundError, NotADirectoryError):
        return None, "", Problem("missing_manifest", MANIFEST_NAME, "missing, so the checkpoint was never completed")
    except OSError as error:
        return None, "", Problem("unreadable", MANIFEST_NAME, str(error))
    try:
        manifest = decode(content)
    except ManifestError as error:
        return None, digest(content), Problem("bad_manifest", MANIFEST_NAME, str(error))
    if parse_name(path.name) is not None and manifest.name != path.name:
        problem = Problem("wrong_name", MANIFEST_NAME, f"belongs to {manifest.name}, not to this folder")
        return manifest, digest(content), problem
    return manifest, digest(content), None


def _check_file(path: Path, entry: FileEntry, *, hashed: bool) -> tuple[Problem | None, int]:
    try:
        size = (path / entry.path).stat().st_size
        if size != entry.size:
            return Problem("wrong_size", entry.path, f"{size} bytes instead of {entry.size}"), 0
        if not hashed:
            return None, 0
        size, found = hash_file(path / entry.path)
    except FileNotFoundError:
        return Problem("missing_file", entry.path, "missing"), 0
    except OSError as error:
        return Problem("unreadable", entry.path, str(error)), 0
    if found != entry.xxh3_128:
        return Problem("wrong_hash", entry.path, "its content differs from what was saved"), size
    return None, size


def _rename_into_place(draft: Path, target: Path) -> Path:
    """Give a finished folder its published name and make that durable.

    The same step can be saved twice under one epoch (a run without a launcher that went back). The
    older one is moved aside first: rename(2) does not replace a folder that has content.
    """
    aside: Path | None = None
    if target.exists():
        aside = target.with_name(f"{OLD}{target.name}-{secrets.token_hex(4)}")
        target.rename(aside)
    draft.rename(target)
    fsync_folder(target.parent)
    if aside is not None:
        shutil.rmtree(aside, ignore_errors=True)
    return target


def _remove(path: Path) -> bool:
    """Remove a published checkpoint so that it is never seen half removed: hide it first."""
    hidden = path.with_name(f"{OLD}{path.name}-{secrets.token_hex(4)}")
    try:
        path.rename(hidden)
    except OSError:
        return False
    shutil.rmtree(hidden, ignore_errors=True)
    return True


def _leftovers(root: Path, epoch: int) -> list[Path]:
    """Hidden folders of unfinished writes and removals whose epoch is not newer than the given one."""
    try:
        paths = list(root.iterdir())
    except OSError:
        return []
    found: list[Path] = []
    for path in paths:
        for prefix in (TMP, OLD):
            published = path.name.removeprefix(prefix).rpartition("-")[0]
            parsed = parse_name(published) if path.name.startswith(prefix) else None
            if parsed is not None and parsed[1] <= epoch:
                found.append(path)
    return found


def _scan_or_nothing(root: Path) -> list[CheckpointInfo]:
    """A listing that takes an unreadable mirror for an empty one: a dead mirror must not stop a job."""
    try:
        return scan(root)
    except CheckpointError:
        return []
