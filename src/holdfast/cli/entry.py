"""The console script and `python -m holdfast`: straight to the launcher for a plain `holdfast run`, else to `cli.main`.

A job that is restarted starts one `holdfast run` on every node and waits for all of them: each is on its way without
the command-line library. Its help and its mistakes are the library's. No time passes here.
"""

from __future__ import annotations

import os
import sys

from holdfast.cli.ending import spoken


def main() -> None:
    """Run the command line and exit. Errors of Holdfast become one sentence and their exit code."""
    with spoken():
        if sys.argv[1:2] == ["run"] and not os.environ.get("_HOLDFAST_COMPLETE"):
            _run_plainly(sys.argv[2:])
        from holdfast.cli.main import app  # noqa: PLC0415 - see the module

        app()


def _run_plainly(args: list[str]) -> None:
    """Begin a run whose command line is a plain one; return when it is not."""
    from holdfast.launch.command_line import read_plain  # noqa: PLC0415 - other commands need none of this

    options = read_plain(args)
    if options is not None:
        from holdfast.cli.run_start import begin  # noqa: PLC0415

        begin(options)


if __name__ == "__main__":
    main()
