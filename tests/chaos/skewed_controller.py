"""`holdfast controller` on a machine whose wall clock is wrong: `python skewed_controller.py SECONDS|FILE WORDS...`.

A file holds the seconds as one double of this machine: whoever writes it lets the clock jump.
"""

from __future__ import annotations

import mmap
import struct
import sys
import time
from pathlib import Path

_true_time = time.time
if Path(sys.argv[1]).is_file():
    with Path(sys.argv[1]).open("rb") as file:
        _ahead_s = mmap.mmap(file.fileno(), 8, prot=mmap.PROT_READ)
    time.time = lambda: _true_time() + struct.unpack("d", _ahead_s[:8])[0]
else:
    ahead_s = float(sys.argv[1])
    time.time = lambda: _true_time() + ahead_s

from holdfast.cli.main import main  # noqa: E402 - the clock is set before anything can take a copy of it

sys.argv = ["holdfast", "controller", *sys.argv[2:]]
main()
