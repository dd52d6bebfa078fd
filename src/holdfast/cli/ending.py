"""How the command ends: with one sentence and an exit code when something goes wrong, or by becoming srun.

`spoken` is called by `entry` and `main`, of which the first must not load the command-line library. No time passes.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import NoReturn

from holdfast.errors import EXIT_INTERNAL, EXIT_UNAVAILABLE, HoldfastError

EXTRAS = {
    "psycopg": "postgres", "boto3": "aws", "botocore": "aws",
    "opentelemetry": "otel", "kubernetes_asyncio": "kubernetes", "pyarrow": "parquet",
}  # fmt: skip
"""Module that may be absent -> the extra of pyproject.toml that has it."""
USERS_OWN = frozenset({"torch", "numpy"})
"""Modules that no extra brings: which build fits is the user's choice."""


@contextlib.contextmanager
def spoken() -> Iterator[None]:
    """What ends the command becomes one sentence and an exit code. Raises SystemExit."""
    try:
        yield
    except HoldfastError as error:
        if os.environ.get("HOLDFAST_DEBUG"):
            raise
        sys.stderr.write(f"holdfast: {error}\n")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader (head, less) left: nothing more to say, and Python must not complain at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] == "holdfast":
            raise
        name = (error.name or str(error)).split(".")[0]
        extra = EXTRAS.get(name)
        more = f"pip install 'holdfast[{extra}]'" if extra else "install Holdfast again, it brings all that it needs"
        more = f"pip install {name}" if name in USERS_OWN else more
        sys.stderr.write(f"holdfast: {name} is not installed: {more}\n")
        sys.exit(EXIT_INTERNAL)


def become_srun(arguments: Sequence[str]) -> NoReturn:
    """This process becomes srun. Raises SystemExit where it cannot be run."""
    try:
        os.execvp("srun", ["srun", *arguments])  # noqa: S606 - this process becomes srun
    except OSError as error:
        sys.stderr.write(f"holdfast: cannot run srun: {error.strerror}\n")
        sys.exit(EXIT_UNAVAILABLE)
