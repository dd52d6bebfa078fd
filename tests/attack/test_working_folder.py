"""A user who places holdfast.toml where others work, to learn their token or to have their programs run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from attack_fixture import STRANGER, Attempt, Stranger, only_root
from holdfast.errors import HoldfastError
from holdfast.os import files
from holdfast.wiring import settings, settings_places
from holdfast.wiring.settings import find_controller, load_settings

EVIL = 'controller = "http://evil:1"\n'
FILE = Path("holdfast.toml")


@pytest.fixture(autouse=True)
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder of our own, and places of our own for all that is looked for."""
    for name in ("HOLDFAST_CONFIG", "HOLDFAST_CONTROLLER", "HOLDFAST_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(settings_places, "SITE_FOLDER", tmp_path / "site")
    for folder in (tmp_path / "config" / "holdfast", tmp_path / "site", tmp_path / "work"):
        folder.mkdir(parents=True)
        folder.chmod(0o755)
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def write(file: Path, text: str, mode: int = 0o644) -> Path:
    file.write_text(text)
    file.chmod(mode)
    return file


def own_file_in_tmp() -> None:
    write(FILE, EVIL)
    Path().chmod(0o1777)


def by_owner(stranger: Stranger, _far: Path) -> None:
    """In /tmp."""
    own_file_in_tmp()
    stranger.owns(FILE)


def by_link(stranger: Stranger, far: Path) -> None:
    """A link of theirs to a file of mine that names their address, such as one in a clone of their repository."""
    FILE.symlink_to(write(far / "mine.toml", EVIL))
    Path().chmod(0o1777)
    only_root("only root gives away a link and keeps its target")
    stranger.owns(FILE)


def by_target(stranger: Stranger, far: Path) -> None:
    """A file of theirs behind a link of mine."""
    FILE.symlink_to(write(far / "theirs.toml", EVIL))
    stranger.owns(far / "theirs.toml")


def by_group(_stranger: Stranger, _far: Path) -> None:
    """A file of mine that my group may write."""
    write(FILE, EVIL, 0o664)


def by_world(_stranger: Stranger, _far: Path) -> None:
    """A file of mine that all may write."""
    write(FILE, EVIL, 0o646)


def by_exchange(_stranger: Stranger, _far: Path) -> None:
    """A folder without the sticky bit: another file of mine gets this name."""
    write(FILE, EVIL)
    Path().chmod(0o777)


def by_folder(stranger: Stranger, _far: Path) -> None:
    """A folder of theirs, in which they may rename what is mine."""
    write(FILE, EVIL)
    stranger.owns(Path.cwd())


def by_hard_link(_stranger: Stranger, far: Path) -> None:
    """A second name in /tmp for a file of mine that names their address."""
    os.link(write(far / "mine.toml", EVIL), FILE)
    Path().chmod(0o1777)


WAYS = [by_owner, by_link, by_target, by_group, by_world, by_exchange, by_folder, by_hard_link]


@pytest.mark.attempt(
    actor="A user of the same machine, in a working folder that others share",
    asset="token",
    removed="wiring.settings_places.not_mine",
)
@pytest.mark.parametrize("way", WAYS)
def test_their_address_is_not_mine(
    attempt: Attempt, stranger: Stranger, way: Callable[[Stranger, Path], None], tmp_path: Path
) -> None:
    """However a file comes to lie in the working folder: where somebody else had a hand in it, nothing of it is read."""
    attempt.without(settings_places, "not_mine", lambda *_facts: "")
    way(stranger, tmp_path)
    attempt.judge(succeeded=load_settings().config.controller == "http://evil:1")


@pytest.mark.attempt(
    actor="A user of the same machine, in a working folder that others share",
    asset="operators' time",
    removed="wiring.settings_places.open_regular, wiring.settings_places.stat.S_ISREG",
)
def test_a_pipe_does_not_hold_a_command(attempt: Attempt) -> None:
    """Nor does a device: it is not opened at all, which alone may act."""
    opened: list[int] = []

    def plain(path: Path) -> int:
        opened.append(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        return opened[-1]

    attempt.without(settings_places, "open_regular", plain)
    if attempt.is_open:
        attempt.without(settings_places.stat, "S_ISREG", lambda _mode: True)
    os.mkfifo(FILE)
    load_settings()
    attempt.judge(succeeded=bool(opened))


@pytest.mark.attempt(
    actor="A user of the same machine, in a working folder that others share",
    asset="operators' processes",
    removed="wiring.settings.service_settings",
)
def test_a_service_does_not_read_the_working_folder(attempt: Attempt) -> None:
    """A controller is started from anywhere, and what it reads names programs that it runs."""
    attempt.without(settings, "service_settings", load_settings)
    write(FILE, EVIL)
    attempt.judge(succeeded=settings.service_settings(None).config.controller == "http://evil:1")


# --- each source of an address with each source of a token ---

ADDRESSES = (
    "typed",
    "environment",
    "named file",
    "working folder",
    "own file",
    "site file",
    "typed folder",
    "file's folder",
)
TOKENS = ("environment", "named file", "working folder", "own file", "site file")
ALLOWED = {
    # What the user names goes together: two words of the same mouth.
    ("typed", "environment"),
    ("environment", "environment"),
    ("named file", "environment"),
    ("typed", "named file"),
    ("environment", "named file"),
    # A file's own token, for its own address.
    ("named file", "named file"),
    ("working folder", "working folder"),
    ("own file", "own file"),
    ("site file", "site file"),
    # What only the user or root writes may name the address for a token that the user names.
    ("own file", "environment"),
    ("site file", "environment"),
}


def a_folder(at: Path) -> Path:
    (at / "controller").mkdir(parents=True)
    (at / "controller" / "controller.json").write_text(
        json.dumps({"url": "http://address:1", "pid": 1, "version": "9"})
    )
    return at


@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_gets_no_token_of_another_source(
    world: Path, monkeypatch: pytest.MonkeyPatch, address: str, token: str
) -> None:
    """The whole table: a token goes to the addresses that it was named with, and to no other."""
    files = {
        "named file": world / "named.toml",
        "working folder": FILE,
        "own file": world / "config" / "holdfast" / "holdfast.toml",
        "site file": world / "site" / "holdfast.toml",
    }
    texts: dict[str, str] = {}
    if token == "environment":
        secret = write(world / "secret", "hft_secret\n", 0o600)
        monkeypatch.setenv("HOLDFAST_TOKEN_FILE", str(secret))
    else:
        write(files[token].parent / "secret", "hft_secret\n", 0o600)
        texts[token] = 'token_file = "secret"\ncontroller = "http://its-own:1"\n'
    named = world / "named.toml" if "named file" in {address, token} else None
    given: dict[str, object] = {"config": named}
    match address:
        case "typed":
            given["url"] = "http://address:1"
        case "environment":
            monkeypatch.setenv("HOLDFAST_CONTROLLER", "http://address:1")
        case "typed folder":
            given["cluster_dir"] = a_folder(world / "cluster")
        case "file's folder":
            texts["own file"] = texts.get("own file", "").replace('controller = "http://its-own:1"\n', "")
            texts["own file"] += f'dir = "{a_folder(world / "cluster")}"\n'
        case _:
            texts[address] = texts.get(address, "").replace('controller = "http://its-own:1"\n', "")
            texts[address] += 'controller = "http://address:1"\n'
    for source, text in texts.items():
        write(files[source], text)
    try:
        found = find_controller(**given)
    except HoldfastError:
        sent = False
    else:
        sent = found.url == "http://address:1" and found.token == "hft_secret"
    assert sent == ((address, token) in ALLOWED)


@pytest.mark.attempt(
    actor="A user of the same machine, in a working folder that others share",
    asset="token",
    removed="wiring.settings._is_of, wiring.settings._check_inside",
)
@pytest.mark.parametrize("check", ["_is_of", "_check_inside"])
def test_the_table_rests_on_two_checks(
    attempt: Attempt, world: Path, monkeypatch: pytest.MonkeyPatch, check: str
) -> None:
    """An address typed beside a file's token; a file of the working folder that points at a token elsewhere."""
    attempt.without(settings, check, lambda *_facts: True)
    own = world / "config" / "holdfast"
    write(own / "secret", "hft_secret\n", 0o600)
    url = None
    if check == "_is_of":
        write(own / "holdfast.toml", 'controller = "http://its-own:1"\ntoken_file = "secret"\n')
        url = "http://evil:1"
    else:
        write(FILE, EVIL + f'token_file = "{own / "secret"}"\n')
    try:
        found = find_controller(url=url)
    except HoldfastError:
        attempt.judge(succeeded=False)
        return
    attempt.judge(succeeded=(found.url, found.token) == ("http://evil:1", "hft_secret"))


@pytest.mark.attempt(
    actor="A user of the same machine, in a working folder that others share",
    asset="token",
    removed="wiring.settings.is_one_hand",
)
@pytest.mark.parametrize("how", ["group", "world", "owner"])
def test_a_clusters_token_goes_to_no_address_of_others(attempt: Attempt, world: Path, how: str) -> None:
    """`--dir`: who may write controller.json beside my token, or exchange it, would be sent the token."""
    attempt.without(settings, "is_one_hand", lambda _address, _token: True)
    folder = a_folder(world / "cluster") / "controller"
    write(folder / "token", "hft_secret\n", 0o600)
    address = folder / "controller.json"
    address.chmod({"group": 0o664, "world": 0o646, "owner": 0o644}[how])
    if how == "owner":
        only_root("only root gives one of two files away")
        os.chown(folder / "token", 1234, 1234)  # the victim's; the address is neither theirs nor root's
        os.chown(address, STRANGER, STRANGER)
    try:
        found = find_controller(cluster_dir=world / "cluster")
    except HoldfastError:
        attempt.judge(succeeded=False)
    else:
        attempt.judge(succeeded=found.token == "hft_secret")


@pytest.mark.attempt(
    actor="A user of the same machine, in a working folder that others share",
    asset="token",
    removed="os.files.write_whole.__kwdefaults__",
)
def test_what_we_write_is_not_open_to_a_group(attempt: Attempt, tmp_path: Path) -> None:
    """With the umask of many clusters, 002, a controller.json would be its group's to write."""
    attempt.without(files.write_whole, "__kwdefaults__", {"mode": 0o666, "durable": False})
    umask = os.umask(0o002)
    try:
        files.write_whole(tmp_path / "controller.json", b"{}")
    finally:
        os.umask(umask)
    attempt.judge(succeeded=bool((tmp_path / "controller.json").stat().st_mode & 0o022))


@pytest.mark.attempt(
    actor="A user of the same machine, in a working folder that others share",
    asset="token",
    removed="wiring.settings._is_stray",
)
def test_no_munge_credential_goes_to_an_address_of_the_working_folder(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Have a munge credential sent to an address of one's own, to show it to the true controller."""
    attempt.without(settings, "_is_stray", lambda *_facts: False)
    monkeypatch.setenv("HOLDFAST_MUNGE", "1")
    own = write(tmp_path / "config" / "holdfast" / "holdfast.toml", 'controller = "http://mine:1"\n')
    assert find_controller().trust.munge == ""
    own.unlink()
    write(FILE, EVIL)
    attempt.judge(succeeded=find_controller().trust.munge is not None)
