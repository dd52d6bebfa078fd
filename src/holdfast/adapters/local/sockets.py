"""Unix sockets in folders of any depth.

A socket's path may have at most 107 bytes. A longer one is reached through `/proc/self/fd/<folder>/<name>`, which is
always short. Used by the embedded cluster and by `slurm/push`. No time passes here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

PATH_BYTES_MAX = 107
"""sizeof(sockaddr_un.sun_path) less its closing NUL, unix(7)."""


@contextlib.contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """An address for `path` that is short enough; valid inside the block."""
    if len(os.fsencode(path)) <= PATH_BYTES_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
