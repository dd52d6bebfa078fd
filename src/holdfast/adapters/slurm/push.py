"""The push path: a script of Slurm's (EpilogSlurmctld, strigger, jobcomp) says "something changed", and we look.

`holdfast notify-slurm` sends one datagram to a socket in the controller's folder. It carries nothing that is believed:
what is true is what the next look shows. Without it changes are found by looking.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

import structlog

from holdfast.errors import LinkError
from holdfast.os.unix_sockets import socket_address

SOCKET = "slurm.sock"
_log = structlog.get_logger("holdfast.slurm")


class PushPort:
    """The receiving end, inside the loop. `folder` None: nothing is listened to."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._socket: socket.socket | None = None
        self._bell = asyncio.Event()
        self._started = False

    def start(self) -> None:
        """Listen; calling it again is harmless. A folder that cannot hold a socket is said once."""
        if self._started or self._folder is None:
            return
        self._started = True
        path = self._folder / SOCKET
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            with socket_address(path) as address:
                listener.bind(address)
            path.chmod(0o600)
        except OSError as error:
            listener.close()
            _log.warning("pushes from Slurm cannot be taken", socket=str(path), why=str(error))
            return
        self._socket = listener
        asyncio.get_running_loop().add_reader(listener.fileno(), self._read)

    def _read(self) -> None:
        if self._socket is None:
            return
        with contextlib.suppress(BlockingIOError):
            while self._socket.recv(512):
                pass
        self._bell.set()

    def ring(self) -> None:
        """Something in this process wants a look."""
        self._bell.set()

    async def wait(self, seconds: float) -> bool:
        """True as soon as there was a push, False after that time."""
        try:
            async with asyncio.timeout(seconds):
                await self._bell.wait()
        except TimeoutError:
            return False
        self._bell.clear()
        return True

    def close(self) -> None:
        """Stop listening."""
        if self._socket is None:
            return
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
        self._socket.close()
        self._socket = None


def push(folder: Path, what: str = "") -> None:
    """Send one push to the controller of this folder.

    Raises:
        LinkError: nobody listens there.
    """
    path = folder / SOCKET
    try:
        with socket_address(path) as address, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(what.encode()[:200] or b"!", address)
    except BlockingIOError:
        return  # its queue is full of pushes: one more says nothing new
    except OSError as error:
        raise LinkError(f"no controller listens at {path}: {error.strerror}") from error
