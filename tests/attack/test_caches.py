"""A neighbour who knows the name of a cache: what stands in it runs in the process that loads it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from attack_fixture import Attempt, Stranger, only_root
from holdfast.adapters import catalogue_files
from holdfast.adapters.catalogue_files import default_cache_folder, read_catalogue, read_matcher
from holdfast.adapters.emulated import devices
from holdfast.detect.catalogue import Catalogue


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return read_catalogue()


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What is handed to the library that loads it; nothing is loaded."""
    given: list[bytes] = []

    def take(_catalogue: Catalogue, data: bytes) -> None:
        given.append(data)

    monkeypatch.setattr(catalogue_files, "Matcher", take)
    monkeypatch.setattr(catalogue_files, "compile_database", lambda _catalogue: b"our own")
    return given


EVIL = b"machine code of theirs"


def evil_cache(folder: Path, catalogue: Catalogue) -> Path:
    """As good as one of ours: its hash is right."""
    folder.mkdir(exist_ok=True)
    file = folder / f"matcher-{catalogue_files._key(catalogue)}.hs"
    file.write_bytes(catalogue_files._MAGIC + hashlib.blake2b(EVIL, digest_size=32).digest() + EVIL)
    file.chmod(0o644)
    return file


@pytest.mark.attempt(
    actor="A user of the same machine, in /dev/shm, /tmp and caches",
    asset="processes",
    removed="adapters.catalogue_files.is_ours",
)
@pytest.mark.parametrize("how", ["owner", "group", "world"])
def test_a_cache_of_another_is_not_loaded(
    attempt: Attempt, stranger: Stranger, catalogue: Catalogue, loaded: list[bytes], tmp_path: Path, how: str
) -> None:
    """In a shared cache folder, or in /tmp where a user has no home: the name is known before."""
    attempt.without(catalogue_files, "is_ours", lambda _opened: True)
    file = evil_cache(tmp_path / "cache", catalogue)
    if how == "owner":
        stranger.owns(file)
    else:
        file.chmod(0o664 if how == "group" else 0o646)
    read_matcher(catalogue, tmp_path / "cache")
    attempt.judge(succeeded=loaded == [EVIL])


@pytest.mark.attempt(
    actor="A user of the same machine, in /dev/shm, /tmp and caches",
    asset="processes",
    removed="adapters.catalogue_files.open_regular",
)
@pytest.mark.parametrize("how", ["link", "pipe"])
def test_what_is_no_file_is_no_cache(
    attempt: Attempt, stranger: Stranger, catalogue: Catalogue, loaded: list[bytes], tmp_path: Path, how: str
) -> None:
    """A link of theirs to an older cache of ours; a pipe would hold every command of its victim."""
    attempt.without(catalogue_files, "open_regular", lambda path, **_below: os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    real = evil_cache(tmp_path / "other", catalogue)
    (tmp_path / "cache").mkdir()
    name = tmp_path / "cache" / real.name
    if how == "link":
        only_root("only root gives a link away")
        name.symlink_to(real)
        stranger.owns(name)
        read_matcher(catalogue, tmp_path / "cache")
    else:
        os.mkfifo(name, 0o600)
        writer = os.open(name, os.O_RDWR | os.O_NONBLOCK)
        os.write(writer, real.read_bytes())
        read_matcher(catalogue, tmp_path / "cache")
        os.close(writer)
    attempt.judge(succeeded=loaded == [EVIL])


@pytest.mark.attempt(
    actor="A user of the same machine, in /dev/shm, /tmp and caches",
    asset="processes",
    removed="adapters.catalogue_files.is_own_folder",
)
@pytest.mark.parametrize("how", ["folder", "link"])
def test_no_cache_is_written_into_a_folder_of_another(
    attempt: Attempt, stranger: Stranger, catalogue: Catalogue, loaded: list[bytes], tmp_path: Path, how: str
) -> None:
    """`/tmp/holdfast-UID` may be there already: as somebody's folder, or as a link to one of the victim's."""
    attempt.without(catalogue_files, "is_own_folder", lambda _folder: True)
    folder = tmp_path / "cache"
    if how == "folder":
        folder.mkdir()
        folder.chmod(0o777)
        stranger.owns(folder)
    else:
        (tmp_path / "precious").mkdir()
        folder.symlink_to(tmp_path / "precious")
    read_matcher(catalogue, folder)
    assert loaded == [b"our own"]
    attempt.judge(succeeded=bool(os.listdir(folder)))


def test_our_own_cache_is_loaded(catalogue: Catalogue, loaded: list[bytes], tmp_path: Path) -> None:
    """What all of this must not break; the folder is made for this user alone."""
    umask = os.umask(0o002)
    try:
        for _ in range(2):
            read_matcher(catalogue, tmp_path / "cache")
    finally:
        os.umask(umask)
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
    (file,) = (tmp_path / "cache").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert loaded == [b"our own"] * 2


def test_without_a_home_the_cache_is_this_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name holds the user's number; whose it is, is looked at as above."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def no_home() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", no_home)
    assert default_cache_folder().name == f"holdfast-{os.getuid()}"


@pytest.mark.attempt(
    actor="A user of the same machine, in /dev/shm, /tmp and caches",
    asset="processes",
    removed="adapters.emulated.devices.foreign",
)
def test_an_emulated_library_of_another_is_not_loaded(
    attempt: Attempt, stranger: Stranger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lab's GPUs are a shared library in the cache, which every command on an emulated node loads."""
    attempt.without(devices, "foreign", lambda _found: "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    name = f"emulated-nvml-{hashlib.blake2b(devices.SOURCE.read_bytes(), digest_size=8).hexdigest()}.so"
    (tmp_path / "holdfast").mkdir()
    planted = tmp_path / "holdfast" / name
    planted.write_bytes(EVIL)
    planted.chmod(0o755)
    stranger.owns(planted)
    monkeypatch.setattr(devices, "compiler", lambda: "/usr/bin/cc")

    def compiled(command, _limit_s):
        Path(command.argv[command.argv.index("-o") + 1]).write_bytes(b"our own")
        return type("Ran", (), {"code": 0})

    monkeypatch.setattr(devices, "run_blocking", compiled)
    attempt.judge(succeeded=devices.build().read_bytes() == EVIL)
