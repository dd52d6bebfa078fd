"""Users of this machine at a controller's Unix socket: real processes of real users. Tests that need them run as root."""

from __future__ import annotations

import sys
from pathlib import Path

from holdfast.os.programs import Command, run_blocking

ANN, BOB = 1, 8
"""Numbers of `daemon` and `mail`, users that every machine has."""
_SAY = """
import os, socket, sys
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[2]))
s = socket.socket(socket.AF_UNIX)
s.settimeout(60)
try:
    s.connect(sys.argv[1])
    s.sendall(sys.stdin.buffer.read())
    answer = b""
    while chunk := s.recv(65536):
        answer += chunk
except OSError as error:
    answer = b"HTTP/1.1 000 " + str(error).encode()
sys.stdout.buffer.write(answer)
"""


def said(uid: int, path: Path, what: str, *, body: str = "", head: str = "") -> tuple[int, str]:
    """Status and body of the answer to a request, such as `GET /v1/jobs`, that a process of this user makes."""
    lines = [f"{what} HTTP/1.1", "Host: x", "Connection: close", f"Content-Length: {len(body)}"]
    lines += ["Content-Type: application/json", *([head] if head else [])]
    command = Command(
        argv=(sys.executable, "-I", "-S", "-c", _SAY, str(path), str(uid)),
        given=("\r\n".join(lines) + "\r\n\r\n" + body).encode(),
    )
    ran = run_blocking(command, 100.0)
    assert ran.code == 0, ran.said
    answer, _, content = ran.out.partition("\r\n\r\n")
    return int(answer.split(" ", 2)[1]), content or answer
