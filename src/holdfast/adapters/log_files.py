"""Log files as people have them: plain, compressed, UTF-16, standard input, folders; as bytes, a megabyte at a time.

`holdfast explain` reads through this. What a file is, is told by its first bytes, not by its name.
"""

from __future__ import annotations

import bz2
import codecs
import json
import lzma
import os
import stat
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, BinaryIO

import zstandard

from holdfast.adapters.wrapped_logs import unwrapped
from holdfast.detect.flight import is_dump
from holdfast.errors import NoInputError, UserError
from holdfast.os.files import read_bounded

CHUNK = 1 << 20
ERROR_FILE_MAX = 4 << 20
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_XZ = b"\xfd7zX"
_BZIP2 = b"BZh"
_UTF16 = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
"""Byte order marks: what a Windows shell redirects."""
_BINARY_SUFFIXES = frozenset(
    {".pt", ".pth", ".bin", ".safetensors", ".npy", ".npz", ".ckpt", ".png", ".jpg", ".pdf", ".so", ".pyc", ".tar",
     ".zip", ".whl", ".parquet", ".arrow", ".idx", ".distcp", ".nsys-rep", ".sqlite", ".db"}
)  # fmt: skip
_JOURNAL = "journal.db"
_BOOKKEEPING = frozenset({"epoch", "story.txt", "checkpoint-seals"})
"""What stands beside the journal in a job's folder and is not a log; the story repeats what the logs say."""
STDIN = "-"
TERMINALS = frozenset({4, 5, *range(136, 144)})
"""Major numbers: virtual consoles, /dev/tty and /dev/console, Unix98 terminals."""


def find_logs(paths: Sequence[str | Path]) -> list[str]:
    """The files to read: each path itself, or every file below a folder that may be a log, by name.

    Raises:
        NoInputError: a path does not exist, or a folder holds no log.
    """
    found: list[str] = []
    for path in paths:
        if str(path) == STDIN:
            found.append(STDIN)
            continue
        place = Path(path)
        try:
            kind = place.stat().st_mode if str(path) else 0
        except PermissionError:
            raise NoInputError(f"{place}: cannot be read: permission denied") from None
        except OSError:
            kind = 0
        if stat.S_ISDIR(kind):
            inside = _below(place)
            if not inside:
                raise NoInputError(f"{place}: the folder holds no log file")
            found += inside
        elif kind:
            _check_ends(place)
            found.append(str(place))
        else:
            raise NoInputError(f"{str(path) or repr('')}: no such file or folder")
    return list(dict.fromkeys(found))


def _below(place: Path) -> list[str]:
    """Every file below a folder that may be a log, and every folder in it that cannot be listed, by name."""
    closed: list[str] = []
    found: list[str] = []
    for folder, inside, names in os.walk(place, onerror=lambda error: closed.append(str(error.filename))):
        kept = _BOOKKEEPING if _JOURNAL in names else frozenset()
        inside[:] = [name for name in inside if name not in kept]
        found += [str(file) for name in names if name not in kept and _may_be_log(file := Path(folder, name))]
    return sorted(found + closed)


def _check_ends(place: Path) -> None:
    """Raise NoInputError for what is no log and may never end. It is not opened: that alone may start a watchdog."""
    if is_endless(place.stat()):
        raise NoInputError(f"{place}: a device, not a log")


def is_endless(found: os.stat_result) -> bool:
    """Whether this is a device; a terminal and /dev/null have an end."""
    if stat.S_ISBLK(found.st_mode):
        return True
    is_null = found.st_rdev == Path(os.devnull).stat().st_rdev
    return stat.S_ISCHR(found.st_mode) and not is_null and os.major(found.st_rdev) not in TERMINALS


def is_stream(path: str) -> bool:
    """Is this standard input, a pipe or the like, which can be read once only?"""
    return path == STDIN or not Path(path).is_file()


def _may_be_log(file: Path) -> bool:
    if file.suffix.lower() in _BINARY_SUFFIXES or file.name.startswith((".", "novelty-")):
        return False
    try:
        if not file.is_file():
            return False
        with file.open("rb") as stream:
            head = stream.read(4096)
    except OSError:
        return True  # who reads it is told why it cannot be
    # Flight recorders' dumps are binary and lie beside logs.
    return bool(head) and (
        is_dump(head) or head.startswith((_GZIP, _ZSTD, _XZ, _BZIP2, *_UTF16)) or b"\x00\x00\x00" not in head
    )


def read_chunks(path: str) -> Iterator[bytes]:
    """A log's bytes, decompressed and unwrapped, in pieces of about a megabyte; memory does not grow with the file.

    Raises:
        UserError: the file cannot be read, or its compression is damaged (what came before the damage is given).
    """
    yield from unwrapped(_raw_chunks(path))


def _raw_chunks(path: str) -> Iterator[bytes]:
    try:
        if path == STDIN:
            yield from _pieces(sys.stdin.buffer)
            return
        with Path(path).open("rb") as raw:
            if is_endless(os.fstat(raw.fileno())):  # by now, whatever its name stood for before
                raise UserError(f"{path}: a device, not a log")
            if not raw.seekable():
                yield from _pieces(raw)
                return
            head = raw.read(4)
            raw.seek(0)
            if head.startswith(_GZIP):
                yield from _unzipped(raw)
            elif head.startswith(_ZSTD):
                with zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True) as unpacked:
                    yield from _pieces(unpacked)
            elif head.startswith(_XZ):
                with lzma.open(raw) as unpacked:
                    yield from _pieces(unpacked)
            elif head.startswith(_BZIP2):
                with bz2.open(raw) as unpacked:
                    yield from _pieces(unpacked)
            elif head[:2] in _UTF16:
                decoder = codecs.getincrementaldecoder(_UTF16[head[:2]])("replace")
                raw.seek(2)
                yield from (decoder.decode(data).encode() for data in _pieces(raw))
            else:
                os.posix_fadvise(raw.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
                yield from _pieces(raw)
    except (OSError, EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError) as error:
        # A job's log that is cut in the middle of a compressed block still tells what came before.
        raise UserError(f"{path}: cannot be read to its end: {error}") from error


def _unzipped(raw: BinaryIO) -> Iterator[bytes]:
    """As gzip does, but what came before a damage or a sudden end is given too."""
    member = zlib.decompressobj(wbits=31)
    while packed := raw.read(CHUNK >> 2):
        while packed:
            if member.eof:
                member = zlib.decompressobj(wbits=31)
            if data := member.decompress(packed, CHUNK):
                yield data
            packed = member.unused_data.lstrip(b"\x00") if member.eof else member.unconsumed_tail
    if not member.eof:
        raise EOFError("the compressed file ends in the middle")


def _pieces(stream: IO[bytes]) -> Iterator[bytes]:
    while data := stream.read(CHUNK):
        yield data


def line_numbers(path: str, offsets: Sequence[int]) -> dict[int, int]:
    """Byte offset of a line's start -> its number, counted from 1. Reads the file once, up to the last offset."""
    wanted = sorted(set(offsets))
    numbers: dict[int, int] = {}
    position = 0
    line = 1
    index = 0
    for data in read_chunks(path):
        start = 0
        while index < len(wanted) and wanted[index] < position + len(data):
            stop = max(start, wanted[index] - position)
            line += data.count(b"\n", start, stop)
            start = stop
            numbers[wanted[index]] = line
            index += 1
        if index >= len(wanted):
            break
        line += data.count(b"\n", start)
        position += len(data)
    return numbers


def last_lines(path: str, size: int) -> list[bytes]:
    """The last lines of a log, at most `size` bytes of them (compressed logs are read through)."""
    kept = b""
    for data in read_chunks(path):
        kept = (kept + data)[-size:]
    return kept.splitlines()


def count_lines(path: str) -> int:
    """How many lines a log has."""
    return sum(data.count(b"\n") for data in read_chunks(path))


def elastic_error(path: str) -> tuple[bytes, float | None] | None:
    """What a torchrun error file (`TORCHELASTIC_ERROR_FILE`) holds: its traceback as a log would show it, and its time.

    None when the file is something else.
    """
    if not path.endswith(".json") or is_stream(path):
        return None
    try:
        told = json.loads(read_bounded(Path(path), ERROR_FILE_MAX))
    except (OSError, ValueError):
        return None
    message = told.get("message") if isinstance(told, dict) else None
    if isinstance(message, str):
        return (message.encode() + b"\n", None)
    if not isinstance(message, dict) or not isinstance(message.get("message"), str):
        return None
    extra = message.get("extraInfo")
    details = extra if isinstance(extra, dict) else {}
    stack = details.get("py_callstack")
    text = stack if isinstance(stack, str) and "Traceback" in stack else message["message"]
    try:
        at = float(details.get("timestamp", ""))
    except (TypeError, ValueError):
        at = None
    return (text.rstrip("\n").encode() + b"\n", at)
