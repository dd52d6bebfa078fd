"""One question, one answer, over the keeper's socket: a JSON object per line each way.

Called by `slurm_lab` (questions) and `keeper` (answers). Time: a question waits up to its limit for the answer.
"""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

from holdfast.errors import LinkError, NotFoundError, RefusedError
from holdfast.os.unix_sockets import socket_address

SOCKET_NAME = "lab.sock"
ERRORS = {"not_found": NotFoundError, "refused": RefusedError}


def ask(folder: Path, op: str, *, limit_s: float = 30.0, socket_name: str = SOCKET_NAME, **facts: Any) -> Any:
    """Have the keeper of the lab in this folder do something; returns its answer.

    Raises:
        LinkError: no keeper runs there, or it does not answer within the limit, or it could not do it.
        NotFoundError: no such node or daemon.
        RefusedError: this lab cannot do that.
    """
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(limit_s)
        try:
            with socket_address(folder / socket_name) as where:
                link.connect(where)
            link.sendall(json.dumps({"op": op, **facts}).encode() + b"\n")
            data = b""
            while not data.endswith(b"\n"):
                part = link.recv(1 << 16)
                if not part:
                    raise LinkError(f"the lab in {folder} ended while it was asked to {op}")
                data += part
        except TimeoutError:
            raise LinkError(f"the lab in {folder} did not {op} within {limit_s:g} s") from None
        except OSError as error:
            raise LinkError(
                f"no lab runs in {folder} ({error.strerror}); `holdfast lab slurm up` (or kubernetes) starts one"
            ) from error
    answer = json.loads(data)
    if answer["ok"]:
        return answer["result"]
    raise ERRORS.get(answer.get("code", ""), LinkError)(answer["error"])


PROGRAM = """\
#!{python} -IS
# Asks the lab's keeper. What calls it gets almost no environment, so all it knows stands here.
import json, socket, sys
with socket.socket(socket.AF_UNIX) as link:
    link.settimeout(120)
    link.connect({sock!r})
    link.sendall(json.dumps({question!r} | {{"node": sys.argv[-1]}}).encode() + b"\\n")
    answer = json.loads(link.makefile().readline())
sys.exit(None if answer["ok"] else answer["error"])
"""


def write_program(path: Path, keeper: Path, **question: str) -> None:
    """Write a program that asks the keeper at this socket; the node is named last on its command line.

    It is what a power cycle, or a call to the provider, is elsewhere.
    """
    path.write_text(PROGRAM.format(python=sys.executable, sock=str(keeper), question=question), encoding="utf-8")
    path.chmod(0o755)


def is_running(folder: Path, op: str = "ping", socket_name: str = SOCKET_NAME) -> bool:
    """Does a keeper answer in this folder?"""
    try:
        ask(folder, op, limit_s=10.0, socket_name=socket_name)
    except LinkError:
        return False
    return True
