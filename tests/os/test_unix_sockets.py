"""The place of a controller's socket and who listens there: `os.unix_sockets`, by real folders and sockets."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import pytest

from attack_fixture import STRANGER, only_root
from holdfast.errors import LinkError, RefusedError
from holdfast.os.unix_sockets import (
    NAME,
    PATH_BYTES_MAX,
    SITE_SOCKET,
    address_of,
    check_place,
    listener,
    socket_address,
    socket_of,
)
from slurm_fixture import short_folder


def listening(path: Path) -> socket.socket:
    server = socket.socket(socket.AF_UNIX)
    with socket_address(path) as address:
        server.bind(address)
    server.listen()
    return server


def test_an_address_names_a_socket_by_its_path():
    """`unix:` and a path; every other address names none."""
    assert socket_of(f"unix:{SITE_SOCKET}") == SITE_SOCKET
    assert socket_of("http://127.0.0.1:8470") is None


def test_a_socket_has_an_address_while_somebody_listens(tmp_path: Path):
    """No socket, one that was left, and an ordinary file have none; a path of any length has one."""
    path = tmp_path / ("f" * PATH_BYTES_MAX) / NAME
    path.parent.mkdir()
    assert address_of(path) == ""
    with listening(path):
        assert address_of(path) == f"unix:{path}"
        assert listener(path) == os.geteuid()
    assert address_of(path) == ""
    with pytest.raises(LinkError, match="its controller has ended and left it behind: start the controller"):
        listener(path)
    path.unlink()
    for missing in (path, path.parent / "none" / NAME):
        with pytest.raises(LinkError, match=re.escape(f"{missing}: there is no such socket: start the controller")):
            listener(missing)
    path.touch()
    assert address_of(path) == ""


def test_a_place_is_its_owners_alone(tmp_path: Path):
    """A folder that others may write, one that is not there, and something else by the name are refused by a sentence."""
    path = tmp_path / NAME
    assert check_place(path) == os.geteuid()
    tmp_path.chmod(0o775)
    with pytest.raises(RefusedError, match=re.escape(f"could be exchanged by others: chmod go-w {tmp_path}")):
        check_place(path)
    tmp_path.chmod(0o1777)
    with pytest.raises(RefusedError, match=r"could be exchanged by others: name one in a folder of its own$"):
        check_place(path)
    tmp_path.chmod(0o700)
    for what, plant in (("a file", path.touch), ("a link", lambda: path.symlink_to(tmp_path / "elsewhere"))):
        plant()
        said = f"{path} is {what}, not a controller's socket: name the socket, or remove what lies in its place"
        with pytest.raises(RefusedError, match=re.escape(said)):
            check_place(path)
        path.unlink()
    with pytest.raises(LinkError, match="there is no such socket"):
        check_place(tmp_path / "absent" / NAME)


def test_a_service_may_listen_and_another_user_only_where_root_has_placed_them():
    """A service's number below 1000 counts; a user's folder in /tmp does not, where anybody may place one."""
    only_root("gives folders away")
    with short_folder() as folder:
        os.chown(folder, 999, 999)
        assert check_place(folder / NAME) == 999
        os.chown(folder, STRANGER, STRANGER)
        with pytest.raises(RefusedError, match=f"a folder of another user .uid {STRANGER}."):
            check_place(folder / NAME)
    given = Path("/root") if Path("/root").stat().st_mode & 0o022 == 0 else None
    if given is not None:
        made = given / f"hf-{os.getpid()}"
        made.mkdir()
        try:
            os.chown(made, STRANGER, STRANGER)
            assert check_place(made / NAME) == STRANGER
        finally:
            made.rmdir()
