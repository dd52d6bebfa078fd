"""`torchrun ... -m holdfast.integrations.torchrun train.py ARGS`: steps are told with no change to the script.

Run by torchrun (or `holdfast run`) in place of the script, in every rank; `-m package.module` works, too. It installs
the step counter of `optimizer_torch` and then runs the script as `__main__`, as Python itself would.
"""

from __future__ import annotations

import os
import runpy
import sys

USAGE = "usage: python -m holdfast.integrations.torchrun [-m MODULE | SCRIPT.py] [ARGS...]\n"


def main() -> None:
    """Count steps in the program that the arguments name."""
    from holdfast.integrations.optimizer_torch import StepCounter  # noqa: PLC0415 - imports torch: not for the usage

    StepCounter().install()
    if sys.argv[1] == "-m":
        sys.argv = sys.argv[2:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        return
    sys.argv = sys.argv[1:]
    # As for a script that Python starts: its own folder is where its imports are looked for.
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))  # noqa: PTH100, PTH120 - keeps links as they are
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    if len(sys.argv) < 2 or (sys.argv[1] == "-m" and len(sys.argv) < 3):
        sys.stderr.write(USAGE)
        sys.exit(2)
    main()
