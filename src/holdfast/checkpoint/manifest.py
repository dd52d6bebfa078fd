"""The manifest of one checkpoint: which files belong to it, their sizes and hashes, and where it stands.

The store writes it last, so its presence says that every file before it was complete; readers decode
it first. Everything here is pure: bytes in, values out; the time in a manifest is handed over by the
writer and is shown to people only, never compared.
"""

import json
import re
from dataclasses import dataclass, field, fields
from pathlib import Path, PurePosixPath
from typing import Any

import xxhash

MANIFEST_NAME = "manifest.json"
FORMAT = "holdfast-checkpoint"
VERSION = 1

_NAME = re.compile(r"step-(\d{9,})\.e(\d{6,})")


class ManifestError(ValueError):
    """The bytes are not a manifest this version can read; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a checkpoint.

    Args:
        path: relative to the checkpoint's folder, with forward slashes.
        size: bytes.
        xxh3_128: hash of the content, 32 hexadecimal digits.
    """

    path: str
    size: int
    xxh3_128: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint says of itself.

    Args:
        step: completed steps of the training when the state was taken.
        epoch: fencing epoch of the attempt that wrote it.
        attempt: the attempt's name, such as `1778(1)`; for people.
        world_size: ranks that took part.
        saved_at: seconds since 1970 by the writer's clock; for people.
        writer: token of the writing attempt, which ties the checkpoint to that attempt's seal.
        layout: how the state lies in the files (`replicated`, `sharded` or a program's own word).
        files: every file, the manifest itself excepted.
        extra: what the program wants to find again without loading the state (small, JSON).
    """

    step: int
    epoch: int
    attempt: str
    world_size: int
    saved_at: float
    writer: str
    layout: str
    files: tuple[FileEntry, ...]
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The folder name this checkpoint must have."""
        return checkpoint_name(self.step, self.epoch)

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(entry.size for entry in self.files)


@dataclass(frozen=True, slots=True)
class Problem:
    """One reason why a checkpoint must not be loaded.

    Args:
        kind: `missing_manifest`, `bad_manifest`, `wrong_name`, `missing_file`, `wrong_size`, `wrong_hash` or
            `unreadable`.
        path: the file inside the checkpoint.
        detail: one clause saying what was found.
    """

    kind: str
    path: str
    detail: str

    def __str__(self) -> str:
        return f"{self.path}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a checkpoint can be trusted.

    Args:
        name: the checkpoint's folder name.
        level: `quick` (manifest and sizes) or `full` (hashes too).
        manifest: None when it could not be read.
        problems: empty when good.
        bytes_read: bytes hashed to come to the verdict.
        spoilt: damaged copies of parts that another copy still holds; nobody must load them.
    """

    name: str
    level: str
    manifest: Manifest | None
    problems: tuple[Problem, ...]
    bytes_read: int = 0
    spoilt: tuple[Path, ...] = ()

    @property
    def ok(self) -> bool:
        """True when nothing speaks against loading it."""
        return not self.problems

    @property
    def sentence(self) -> str:
        """The verdict as a person would say it."""
        if self.ok:
            return f"{self.name} is good ({self.level} check)"
        more = f" and {len(self.problems) - 1} more" if len(self.problems) > 1 else ""
        return f"{self.name} is damaged: {self.problems[0]}{more}"


def checkpoint_name(step: int, epoch: int) -> str:
    """Folder name of a published checkpoint: `step-000000120.e000002`."""
    return f"step-{step:09d}.e{epoch:06d}"


def parse_name(name: str) -> tuple[int, int] | None:
    """(step, epoch) of a published checkpoint's folder name, or None for any other name."""
    match = _NAME.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def digest(content: bytes) -> str:
    """xxh3-128 of some bytes as 32 hexadecimal digits."""
    return str(xxhash.xxh3_128(content).hexdigest())


def encode(manifest: Manifest) -> bytes:
    """The manifest as JSON whose last key is the hash of everything before it.

    The hash lets a reader tell a torn or flipped manifest from a good one: sizes and hashes of other
    files cannot be trusted when the list itself may have changed.
    """
    body = {"format": FORMAT, "version": VERSION}
    body |= {one.name: getattr(manifest, one.name) for one in fields(manifest)}
    body["files"] = [{"path": e.path, "size": e.size, "xxh3_128": e.xxh3_128} for e in manifest.files]
    try:
        canonical = _canonical(body)
    except (TypeError, ValueError) as error:
        raise ManifestError(f"the manifest's `extra` must be plain JSON: {error}") from error
    return json.dumps({**body, "self_xxh3_128": digest(canonical)}, indent=1, allow_nan=False).encode() + b"\n"


def decode(content: bytes) -> Manifest:
    """Read a manifest; keys that a later version added are ignored.

    Raises:
        ManifestError: torn, changed after writing, of a newer major version, or not a manifest at all.
    """
    try:
        raw = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"not JSON ({error})") from error
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise ManifestError(f"not a {FORMAT} manifest")
    if raw.get("version") != VERSION:
        raise ManifestError(f"version {raw.get('version')!r}, this Holdfast reads version {VERSION}")
    claimed = raw.pop("self_xxh3_128", None)
    if claimed != digest(_canonical(raw)):
        raise ManifestError("its own hash differs, so it was changed or torn after writing")
    try:
        return _from_body(raw)
    except (KeyError, TypeError, ValueError) as error:
        raise ManifestError(f"a key is missing or has the wrong type ({error})") from error


def _from_body(raw: dict[str, Any]) -> Manifest:
    files = tuple(FileEntry(inside(e["path"]), int(e["size"]), str(e["xxh3_128"])) for e in raw["files"])
    return Manifest(
        step=int(raw["step"]),
        epoch=int(raw["epoch"]),
        attempt=str(raw["attempt"]),
        world_size=int(raw["world_size"]),
        saved_at=float(raw["saved_at"]),
        writer=str(raw["writer"]),
        layout=str(raw["layout"]),
        files=files,
        extra=dict(raw["extra"]),
    )


def inside(path: str) -> str:
    """The path, relative to the checkpoint's folder. Raises ValueError when it leads out of it."""
    parts = PurePosixPath(path)
    if not path or parts.is_absolute() or ".." in parts.parts:
        raise ValueError(f"path {path!r} leaves the checkpoint's folder")
    return path


def _canonical(body: dict[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
