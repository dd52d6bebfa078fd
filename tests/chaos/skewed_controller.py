"""`holdfast controller` on a machine whose wall clock is wrong: `python skewed_controller.py SECONDS WORDS...`."""

from __future__ import annotations

import sys
import time

ahead_s = float(sys.argv[1])
_true_time = time.time
time.time = lambda: _true_time() + ahead_s

from holdfast.cli.main import main  # noqa: E402 - the clock is set before anything can take a copy of it

sys.argv = ["holdfast", "controller", *sys.argv[2:]]
main()
