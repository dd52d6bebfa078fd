"""Runs a script on a disk that stands still: torch.save waits half-way through a file while a named pipe asks for it.

python slow_disk.py PIPE NAME SCRIPT ARGS: every file whose path ends with NAME, as long as PIPE exists.
"""

from __future__ import annotations

import io
import os
import runpy
import sys
from typing import Any, BinaryIO

import torch

PIPE, NAME, *SCRIPT = sys.argv[1:]
write = torch.save


def save(state: object, file: BinaryIO, **how: Any) -> None:
    if str(getattr(file, "name", "")).endswith(NAME) and os.path.exists(PIPE):
        content = io.BytesIO()
        write(state, content, **how)
        file.write(content.getvalue()[: content.tell() // 2])
        file.flush()
        with open(PIPE, "rb") as pipe:
            pipe.read()
    else:
        write(state, file, **how)


torch.save = save
sys.argv = SCRIPT
sys.path[0] = os.path.dirname(SCRIPT[0])
runpy.run_path(SCRIPT[0], run_name="__main__")
