"""Is one file of somebody else's checkpoint whole? What its container can tell, without torch and without unpickling.

Called by `frameworks` for every file of a checkpoint. Containers: what `torch.save` writes (a zip archive with a CRC-32
of every record, unless the program switched them off), its form before torch 1.6 (a pickle, which carries no checksum),
safetensors (a header that names every byte), and the `.distcp` files of torch's distributed checkpoints (see
`distributed`). Nothing waits; no clock.
"""

from __future__ import annotations

import json
import os
import struct
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO

from holdfast.checkpoint.files import open_file
from holdfast.checkpoint.manifest import Problem

CHUNK = 4 << 20
_ZIP = b"PK\x03\x04"
_PICKLE = b"\x80"
_HEADER_BYTES_MAX = 100 << 20
"""Largest safetensors header that its own library reads."""
TORCH_SUFFIXES = frozenset({".pt", ".pth", ".bin", ".ckpt"})


def is_torch_file(path: Path) -> bool:
    """Does the file begin as `torch.save` begins one?"""
    try:
        with open_file(path) as file:
            head = file.read(4)
    except OSError:
        return False
    return head == _ZIP or head[:1] == _PICKLE


def check_file(path: Path, *, full: bool) -> tuple[Problem | None, int]:
    """Check one file by what it is: (problem or None, bytes read).

    Args:
        path: the file.
        full: also read the content and compare it with the checksums that it carries, if any.
    """
    try:
        size = path.stat().st_size
        if not size:
            return Problem("wrong_size", path.name, "empty"), 0
        if path.suffix == ".safetensors":
            return _safetensors(path, size), 0
        if path.suffix == ".json":
            with open_file(path) as file:
                json.load(file)
            return None, size
        if path.suffix in TORCH_SUFFIXES:
            with open_file(path) as file:
                return check_torch(file, path.name, full=full)
    except FileNotFoundError:
        return Problem("missing_file", path.name, "missing"), 0
    except OSError as error:
        return Problem("unreadable", path.name, str(error)), 0
    except (ValueError, RecursionError) as error:
        return Problem("wrong_content", path.name, f"no whole JSON ({error})"), 0
    return None, 0


def check_torch(file: BinaryIO, name: str, *, full: bool) -> tuple[Problem | None, int]:
    """What `torch.save` wrote, as an open file: (problem or None, bytes read).

    Raises:
        OSError: it cannot be read.
    """
    head = file.read(4)
    if head == _ZIP:
        return _archive(file, name, full=full)
    if head[:1] == _PICKLE:
        # The old form has no end mark that a reader without torch could look for, and no checksum.
        return None, 0
    return Problem("wrong_content", name, "does not begin as torch.save begins a file"), 0


def _archive(file: BinaryIO, name: str, *, full: bool) -> tuple[Problem | None, int]:
    """A zip archive: its directory stands at the end, so a truncated file has none."""
    try:
        archive = zipfile.ZipFile(file)
        entries = archive.infolist()
    except (zipfile.BadZipFile, ValueError) as error:
        return Problem("wrong_size", name, f"cut short, its directory is missing ({error})"), 0
    if not any(entry.filename.endswith("data.pkl") for entry in entries):
        return Problem("wrong_content", name, "a zip archive, but nothing that torch.save wrote"), 0
    # torch.serialization.set_crc32_options(False) writes zeros: then there is nothing to compare with.
    if not full or not any(entry.CRC for entry in entries):
        return None, 0
    read = 0
    for entry in entries:
        crc, size = _crc(archive, entry)
        read += size
        if crc != entry.CRC:
            return Problem("wrong_hash", name, f"record {entry.filename} differs from what was saved"), read
    return None, read


def _crc(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> tuple[int, int]:
    """(CRC-32, bytes) of a record; the archive's own check is by-passed, as it cannot say which record it was."""
    crc = size = 0
    try:
        with archive.open(entry) as record:
            record._expected_crc = None  # type: ignore[attr-defined]  # noqa: SLF001 - compared by the caller
            while chunk := record.read(CHUNK):
                crc = zlib.crc32(chunk, crc)
                size += len(chunk)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError):
        return -1, size
    return crc, size


def _safetensors(path: Path, size: int) -> Problem | None:
    """Eight bytes of length, a JSON header with the place of every tensor, then exactly their bytes.

    The format is https://github.com/huggingface/safetensors (format section of its README).
    """
    with open_file(path) as file:
        prefix = file.read(8)
        if len(prefix) < 8:
            return Problem("wrong_size", path.name, f"{size} bytes, too short for a safetensors file")
        (length,) = struct.unpack("<Q", prefix)
        if length > min(size - 8, _HEADER_BYTES_MAX):
            return Problem("wrong_size", path.name, f"its header of {length} bytes does not fit into {size} bytes")
        try:
            header = json.loads(file.read(length))
            end = max((int(v["data_offsets"][1]) for k, v in header.items() if k != "__metadata__"), default=0)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
            return Problem("wrong_content", path.name, "its header is damaged")
    if 8 + length + end != size:
        return Problem("wrong_size", path.name, f"{size} bytes instead of {8 + length + end}")
    return None


def read_text(path: Path, limit: int = 4096) -> str | None:
    """The beginning of a small text file, None when it cannot be read."""
    try:
        with open_file(path) as file:
            return os.fsdecode(file.read(limit)).strip()
    except OSError:
        return None
