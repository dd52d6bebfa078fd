"""A user whose logs an operator explains, as root perhaps: files without end, pipes, devices whose opening acts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from attack_fixture import Attempt
from holdfast.adapters import log_files, log_rule_files
from holdfast.adapters.catalogue_files import read_catalogue, read_matcher
from holdfast.adapters.log_rule_files import read_log_rules
from holdfast.cli.explain import explain_logs
from holdfast.detect.matcher import Matcher
from holdfast.errors import ConfigError, NoInputError, UserError
from holdfast.launch import novel_lines
from holdfast.os import files

LIMIT = 1 << 20
FAULT = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


class EndlessError(Exception):
    """A file without end was read."""


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    return read_matcher(read_catalogue())


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of all that is opened and is no ordinary file; what would read on for ever ends with an error."""
    seen: list[str] = []
    plain = Path.open

    def open_(self, mode="r", *args, **named):
        real = os.path.realpath(self)
        if real == "/dev/zero":
            seen.append(str(self))
            raise EndlessError(self)
        return plain(self, mode, *args, **named)

    monkeypatch.setattr(Path, "open", open_)
    monkeypatch.setattr(Path, "read_bytes", lambda self: open_(self, "rb").read())
    return seen


@pytest.mark.attempt(
    actor="A user whose logs and checkpoints an operator looks through",
    asset="the operator's machine",
    removed="adapters.log_files.is_endless",
)
@pytest.mark.parametrize("name", ["/dev/zero", "link", "link of a link"])
def test_a_device_is_not_even_opened(
    attempt: Attempt, matcher: Matcher, watched: list[str], tmp_path: Path, name: str
) -> None:
    """By its own name or behind links; to open a watchdog's is to start it."""
    attempt.without(log_files, "is_endless", lambda _found: False)
    place = Path(name)
    if name != "/dev/zero":
        place = tmp_path / "a.log"
        place.symlink_to("/dev/zero")
    if name == "link of a link":
        (tmp_path / "b.log").symlink_to(place)
        place = tmp_path / "b.log"
    try:
        explain_logs([place], matcher=matcher)
    except (NoInputError, EndlessError):
        attempt.judge(succeeded=bool(watched))


@pytest.mark.attempt(
    actor="A user whose logs and checkpoints an operator looks through",
    asset="the operator's machine",
    removed="adapters.log_files.is_endless",
)
def test_a_file_that_becomes_a_device_is_left(attempt: Attempt, tmp_path: Path) -> None:
    """Its name is exchanged between the look and the opening."""
    attempt.without(log_files, "is_endless", lambda _found: False)
    chunks = log_files._raw_chunks("/dev/zero")
    try:
        first = next(chunks)
    except UserError:
        attempt.judge(succeeded=False)
    else:
        attempt.judge(succeeded=len(first) == log_files.CHUNK)


@pytest.mark.attempt(
    actor="A user whose logs and checkpoints an operator looks through",
    asset="the operator's machine",
    removed="os.files.open_regular",
)
def test_a_pipe_beside_a_log_is_not_read(attempt: Attempt, tmp_path: Path) -> None:
    """`novelty-NODE.json` is looked for beside every log: a pipe of this name would hold its reader for ever."""
    attempt.without(files, "open_regular", lambda path: os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    pipe = tmp_path / "novelty-n1.json"
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    try:
        os.write(writer, b'[["a", "line", "of", "theirs"]]')
        known = novel_lines.read_known(tmp_path)
    finally:
        os.close(writer)
    attempt.judge(succeeded=len(known) > 0)


@pytest.mark.attempt(
    actor="A user whose logs and checkpoints an operator looks through",
    asset="the operator's machine",
    removed="adapters.log_files._may_be_log",
)
@pytest.mark.parametrize("kind", ["device", "pipe"])
def test_a_folder_of_logs_holds_no_device(attempt: Attempt, tmp_path: Path, kind: str) -> None:
    """What somebody has put among the logs of a folder is passed over."""
    attempt.without(log_files, "_may_be_log", lambda _file: True)
    (tmp_path / "rank.log").write_text(FAULT)
    planted = tmp_path / "error.json"
    if kind == "device":
        planted.symlink_to("/dev/zero")
    else:
        os.mkfifo(planted)
    attempt.judge(succeeded=str(planted) in log_files.find_logs([tmp_path]))


@pytest.mark.attempt(
    actor="A user whose logs and checkpoints an operator looks through",
    asset="the operator's machine",
    removed="adapters.log_files.ERROR_FILE_MAX",
)
def test_a_large_file_is_not_held_in_memory(attempt: Attempt, tmp_path: Path) -> None:
    """A file that is named like torchrun's error files is read as a whole only while it is as small as they are."""
    attempt.without(log_files, "ERROR_FILE_MAX", 1 << 30)
    large = tmp_path / "error.json"
    large.write_text('{"message": "' + "x" * (5 << 20) + '"}')
    attempt.judge(succeeded=log_files.elastic_error(str(large)) is not None)


@pytest.mark.attempt(
    actor="A user whose logs and checkpoints an operator looks through",
    asset="the operator's machine",
    removed="adapters.log_rule_files.FILE_MAX, os.files.open_regular",
)
@pytest.mark.parametrize("place", ["/dev/zero", "large"])
def test_log_rules_without_end(attempt: Attempt, tmp_path: Path, place: str) -> None:
    """`--log-rules` is often a manifest of the job's user."""
    attempt.without(log_rule_files, "FILE_MAX", 8 << 20)
    attempt.without(files, "open_regular", lambda path: os.open(path, os.O_RDONLY))
    file = Path(place)
    if place == "large":
        file = tmp_path / "rules.yaml"
        file.touch()
        os.truncate(file, 2 << 20)
    try:
        read_log_rules(file)
    except ConfigError as error:
        refused = "it is no ordinary file" if place == "/dev/zero" else "is larger than 1048576"
        attempt.judge(succeeded=refused not in str(error))


@pytest.mark.attempt(
    actor="A user whose logs and checkpoints an operator looks through",
    asset="the operator's machine",
    removed="os.files.open_regular",
)
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "larger"])
def test_a_bounded_read_reads_what_is_bounded(attempt: Attempt, tmp_path: Path, kind: str) -> None:
    """The one way in which small files of others are read."""
    attempt.without(files, "open_regular", lambda path: os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    place = Path("/dev/zero") if kind == "device" else tmp_path / "x"
    size_max = 100
    match kind:
        case "pipe":
            os.mkfifo(place)
        case "folder":
            place.mkdir()
        case "larger":
            place.write_bytes(bytes(101))
            if attempt.is_open:
                size_max = 101
    if kind == "device" and attempt.is_open:
        with os.fdopen(files.open_regular(place), "rb") as opened:
            attempt.judge(succeeded=len(opened.read(LIMIT)) == LIMIT)
        return
    try:
        read = files.read_bounded(place, size_max)
    except IsADirectoryError:
        attempt.judge(succeeded=attempt.is_open)  # the folder was opened
    except OSError:
        attempt.judge(succeeded=False)
    else:
        attempt.judge(succeeded=len(read) >= 0)


def test_a_terminal_and_null_are_read() -> None:
    """What people do type: `holdfast explain /dev/stdin`, and scripts that name /dev/null."""
    primary, secondary = os.openpty()
    try:
        assert not log_files.is_endless(os.fstat(secondary))
    finally:
        os.close(primary)
        os.close(secondary)
    assert not log_files.is_endless(os.stat("/dev/null"))
    assert log_files.is_endless(os.stat("/dev/zero"))
