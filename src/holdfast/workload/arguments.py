"""The command line that both workloads share, and what they write for people and for comparison.

Called by `counter` and `gpt_torch` at their start and after each step. `argparse` and `json` are all
that is imported: the counter must start in a blink. The environment of the rank is read here.
"""

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


class Options(argparse.Namespace):
    """Command line of a workload."""

    steps: int
    checkpoint_every: int
    checkpoint_dir: Path
    mirror: list[Path]
    seed: int
    step_time: float
    loss_log: Path | None
    print_every: int
    state_kb: int


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where this process stands among the ranks, from the variables every launcher sets."""

    rank: int
    world_size: int
    master_addr: str
    master_port: int
    attempt: str

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> "RankPlace":
        """Without a launcher: rank 0 of 1."""
        return cls(
            rank=int(environ.get("RANK", "0")),
            world_size=int(environ.get("WORLD_SIZE", "1")),
            master_addr=environ.get("MASTER_ADDR", "127.0.0.1"),
            master_port=int(environ.get("MASTER_PORT", "29500")),
            attempt=environ.get("HOLDFAST_ATTEMPT", environ.get("HOLDFAST_EPOCH", "0")),
        )


def parse(about: str, argv: Sequence[str] | None = None) -> Options:
    """Read the command line; a mistake ends the process with argparse's sentence and code 2."""
    parser = argparse.ArgumentParser(description=about)
    add = parser.add_argument
    add("--steps", type=int, default=400, help="completed steps to train to (default %(default)s)")
    add("--checkpoint-every", type=int, default=20, metavar="N", help="save every N steps, 0: never (%(default)s)")
    add("--checkpoint-dir", type=Path, default=Path("checkpoints"), metavar="DIR", help="default: ./checkpoints")
    add("--mirror", type=Path, action="append", default=[], metavar="DIR", help="copy checkpoints there (repeatable)")
    add("--seed", type=int, default=1, help="of weights, data order and dropout (default %(default)s)")
    add("--step-time", type=float, default=0.0, metavar="S", help="least seconds per step, so that one can watch")
    add("--loss-log", type=Path, metavar="FILE", help="append step, loss and attempt as JSON lines")
    add("--print-every", type=int, default=1, metavar="N", help="progress line every N steps (default %(default)s)")
    add("--state-kb", type=int, default=4, metavar="KB", help="size of the counter's state (default %(default)s)")
    got = parser.parse_args(argv, Options())
    for name, least in (("steps", 1), ("checkpoint_every", 0), ("print_every", 1), ("step_time", 0), ("state_kb", 0)):
        if getattr(got, name) < least:
            parser.error(f"--{name.replace('_', '-')} must be {least} or more")
    return got


class Progress:
    """What rank 0 writes after each step: the line for people, and the loss log for comparison."""

    def __init__(self, options: Options, place: RankPlace) -> None:
        self._options = options
        self._attempt = place.attempt
        self._speaks = place.rank == 0
        self._log = None
        if self._speaks and options.loss_log is not None:
            options.loss_log.parent.mkdir(parents=True, exist_ok=True)
            # Line buffered: each line is one write, so a kill leaves whole lines behind.
            self._log = options.loss_log.open("a", buffering=1, encoding="ascii")

    def say(self, line: str) -> None:
        """One line on stdout, by rank 0, at once."""
        if self._speaks:
            print(line, flush=True)  # noqa: T201 - a training script's progress belongs on stdout

    def step(self, step: int, loss: float) -> None:
        """Report a completed step; the logged loss has every bit (`repr` of a float is exact)."""
        if step % self._options.print_every == 0 or step == self._options.steps:
            self.say(f"step {step}/{self._options.steps} loss {loss:.4f}")
        if self._log is not None:
            self._log.write(json.dumps({"step": step, "loss": loss, "attempt": self._attempt}) + "\n")
