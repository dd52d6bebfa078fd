"""Run once more, alone, what failed in `make test`, and say so. Called by the Makefile after all test runs.

    python tests/second_try.py EXIT_CODE...

The codes are pytest's of the runs before (0 passed, 1 tests failed). Nothing is tried again when a run broke off
(another code), when more than MOST tests failed, or when what failed is not a test. Who fails twice has failed; who
passes at the second try is named at the end as unsteady. See docs/decisions/036.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

MOST = 3
"""More failures than these are no accident of the machine."""
FAILED = Path(".pytest_cache/v/cache/lastfailed")
Run = Callable[[Sequence[str]], int]


def second_try(codes: Sequence[int], failed: Path, run: Run) -> tuple[int, str]:
    """The exit code of all, and what to say last. `failed`: pytest's own list; `run`: runs tests by their ids."""
    if not any(codes):
        return 0, ""
    if any(code not in (0, 1) for code in codes):
        return 1, f"a test run broke off with exit code {max(codes)} (see above)"
    try:
        tests = sorted(json.loads(failed.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        return 1, f"tests failed (see their summary above); which ones cannot be read in {failed}: {error}"
    if len(tests) > MOST or not tests or not all("::" in test for test in tests):
        return 1, f"{len(tests)} failed (see the summaries above); up to {MOST} would have been tried once more"
    print(f"failed: {', '.join(tests)}\nonce more, with nothing beside:", flush=True)
    if run(tests):
        return 1, "failed twice (see the summaries above)"
    return 0, "UNSTEADY, passed at the second try only (the first failure stands above):\n  " + "\n  ".join(tests)


def _pytest(tests: Sequence[str]) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *tests], check=False).returncode


if __name__ == "__main__":
    code, words = second_try([int(code) for code in sys.argv[1:]], FAILED, _pytest)
    if words:
        print(words)
    raise SystemExit(code)
