"""The files that srun writes for `--output` and `--error`: read as they grow, and kept per attempt.

The user's file names stand; every attempt appends to them. What one attempt added is copied into `logs/attempt-N/`
when it is over. Used by `step_runner`, which asks about ten times a second.
"""

from __future__ import annotations

import glob
import os
import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from holdfast.adapters.slurm.steps import SrunCall, output_glob
from holdfast.detect.matcher import LineStream, Match, Matcher, StreamSource

_BLOCK = 1 << 18
_KEPT_MAX = 64 << 20
_FILES_MAX = 512
"""Files that are read while the step runs; those of further tasks are only copied."""
_MANY = 64
_MANY_EVERY = 10
_COPIED_MAX = 4096


class _File:
    def __init__(self, path: str, offset: int, rank: int | None) -> None:
        self.path = path
        self.offset = offset
        self.begun = offset
        self.rank = rank
        self.stream: LineStream | None = None


class StepFiles:
    """Output files of one attempt.

    Args:
        call: srun's command line.
        environ: of the job, for the letters of file-name patterns.
        folder: where the attempt's part is kept.
        user: name of the user.
    """

    def __init__(self, call: SrunCall, environ: Mapping[str, str], folder: Path, *, user: str) -> None:
        self._folder = folder
        self._globs: list[tuple[str, re.Pattern[str] | None]] = []
        # srun opens a common file from where it was called, slurmstepd one per task from where the tasks run.
        homes = {os.getcwd(), call.value("chdir") or os.getcwd()}  # noqa: PTH109 - as strings
        names = {
            "job": environ.get("SLURM_JOB_ID", ""),
            "array_job": environ.get("SLURM_ARRAY_JOB_ID", ""),
            "array_task": environ.get("SLURM_ARRAY_TASK_ID", ""),
            "user": user,
            "name": environ.get("SLURM_JOB_NAME", ""),
        }
        for option in ("output", "error"):
            pattern = call.value(option) or ""
            found = output_glob(pattern, **names)
            if found:
                paths = [found] if found.startswith("/") else [f"{glob.escape(home)}/{found}" for home in sorted(homes)]
                self._globs += [(path, _rank_of(pattern)) for path in paths]
        self._files: dict[str, _File] = {}
        self._old = {path: _size(path) for path, _ in self._now()}
        self._looks = 0

    def _now(self) -> Iterator[tuple[str, int | None]]:
        for pattern, rank in self._globs:
            for path in sorted(glob.glob(pattern))[:_COPIED_MAX]:  # noqa: PTH207 - patterns are absolute strings
                found = rank.search(path) if rank is not None else None
                yield path, int(found[1]) if found else None

    def pump(self, matcher: Matcher, at: float) -> list[tuple[str, int | None, list[Match]]]:
        """What is new, matched: (path, rank when the name tells it, matches)."""
        if not self._globs:
            return []
        self._looks += 1
        if len(self._files) < _MANY or self._looks % _MANY_EVERY == 0:
            self._find()
        found = []
        for file in list(self._files.values())[:_FILES_MAX]:
            data = self._new_of(file)
            if data:
                if file.stream is None:
                    file.stream = matcher.stream(StreamSource(rank=file.rank))
                found.append((file.path, file.rank, file.stream.feed(data, at)))
        return found

    def _find(self) -> None:
        for path, rank in self._now():
            if path not in self._files and os.path.isfile(path):  # noqa: PTH113 - as above
                self._files[path] = _File(path, self._old.get(path, 0), rank)

    @staticmethod
    def _new_of(file: _File) -> bytes:
        try:
            if os.stat(file.path).st_size <= file.offset:  # noqa: PTH116
                return b""
            with open(file.path, "rb") as source:  # noqa: PTH123
                source.seek(file.offset)
                data = source.read(_BLOCK)
        except OSError:
            return b""
        file.offset += len(data)
        return data

    def keep_soon(self) -> None:
        """Copy this attempt's part in the background; a restart does not wait for it."""
        self._find()
        ends = {path: _size(path) for path in self._files}
        if ends:
            threading.Thread(target=self._keep, args=(ends,), name="holdfast-keep", daemon=True).start()

    def keep(self) -> None:
        """Copy now what is not copied yet."""
        self._find()
        self._keep({path: _size(path) for path in self._files})

    def _keep(self, ends: Mapping[str, int]) -> None:
        for path, end in ends.items():
            file = self._files[path]
            target = self._folder / Path(path).name
            if target.exists() or end <= file.begun:
                continue
            try:
                with open(path, "rb") as source, target.open("wb") as copy:  # noqa: PTH123
                    begin = max(file.begun, end - _KEPT_MAX)
                    source.seek(begin)
                    while begin < end and (block := source.read(min(_BLOCK, end - begin))):
                        copy.write(block)
                        begin += len(block)
            except OSError:
                continue


def _rank_of(pattern: str) -> re.Pattern[str] | None:
    """What finds the task's number in a file's name: only where `%t` stands between other text."""
    before, mark, after = pattern.partition("%t")
    if not mark:
        return None
    left = re.search(r"([^%]?)$", before)
    right = re.match(r"([^%]?)", after)
    return re.compile(rf"{re.escape(left[1]) if left else ''}(\d+){re.escape(right[1]) if right else ''}[^/]*$")


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116
    except OSError:
        return 0
