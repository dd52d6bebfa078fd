"""`python -m holdfast.agent`: what the embedded cluster starts on every node. People use `holdfast agent`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from holdfast.agent.process import AgentOptions, run_agent
from holdfast.errors import HoldfastError
from holdfast.os.tls import trust_of


def main(argv: Sequence[str] | None = None) -> int:
    """Run an agent; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m holdfast.agent", description="The agent of an embedded node.")
    parser.add_argument("--node-dir", type=Path, required=True)
    parser.add_argument("--controller-file", type=Path, required=True)
    parser.add_argument("--token-file", type=Path, help="default: none, by the controller's socket")
    parser.add_argument("--beat-s", type=float, default=10.0)
    parser.add_argument("--emulated-devices", action="store_true", help="give the node emulated GPUs")
    parser.add_argument("--poll-s", type=float)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--metrics")
    options = AgentOptions(**vars(parser.parse_args(argv)), trust=trust_of(os.environ))
    try:
        run_agent(options)
    except HoldfastError as error:
        sys.stderr.write(f"holdfast agent: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
