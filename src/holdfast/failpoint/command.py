"""The command file of a drill inside a training process, and the names of the files around it.

Written by drills (through the launcher), read by the hook in the rank (`hook`). Pure: text in, value out; no
clock, no file. In the drill folder of a job on a node lie, for a drill called ID:

    ID.json              the command; write it under another name and rename it, it is read within 20 ms
    ID.rank-00005.fired  rank 5 does it: {"at": seconds since 1970, "pid", "step", "thread"}; on disk before the effect
    ID.rank-00005.failed rank 5 could not: {"at", "pid", "error"}
    ID.abort             undo it, and do not do it any more
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any

VERSION = 1

ENV_DIR = "HOLDFAST_DRILL_DIR"
ENV_OWNER = "HOLDFAST_DRILL_OWNER"


class CommandError(Exception):
    """A command file that cannot be obeyed; the message names the wrong field and what it should be."""


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter of a kind: the types that JSON may give, and the default (None with `required` False: unset)."""

    types: tuple[type, ...]
    default: Any = None
    required: bool = False
    least: float | None = None
    choices: tuple[str, ...] = ()

    def wrong(self, value: Any) -> str:
        """What is wrong with a value, to be put behind its name; empty: nothing is."""
        # By exact type: in Python a bool is an int, here it is not.
        if type(value) not in self.types:
            return f": {value!r}, expected {' or '.join(kind.__name__ for kind in self.types)}"
        # Written so that NaN fails too.
        if self.least is not None and not value >= self.least:
            return f": {value!r}, expected at least {self.least}"
        if self.choices and value not in self.choices:
            return f": {value!r}, expected one of {', '.join(self.choices)}"
        return ""


_NUMBER = (int, float)
# Every kind takes this one: how long `at_step` waits for a script that may not use telemetry at all.
_ANY_KIND = {"telemetry_wait_s": Param(_NUMBER, 30.0, least=0)}
_SLOW = {"extra_s": Param(_NUMBER, 1.0, least=0), "busy": Param((bool,), False)}

# Kinds that run inside the process, each with its parameters. Kinds done to a node or a folder (full disk, corrupt
# checkpoint, node and network loss, Xid lines) are not commands.
KINDS: dict[str, dict[str, Param]] = {
    "crash_segfault": {},
    "exception": {"message": Param((str,), "injected exception")},
    "hang_allreduce": {},
    "hang_p2p": {"peer": Param((int,), least=0)},
    "hang_user_buffer": {"busy": Param((bool,), False)},
    "straggler": {**_SLOW, "steps": Param((int,), least=1)},
    "straggler_then_hang": {**_SLOW, "steps": Param((int,), 10, least=1)},
    "gil_lock": {"seconds": Param(_NUMBER, 600.0, least=0)},
    "nan_loss": {"parameter": Param((str,))},
    "out_of_memory": {"hold_mib": Param((int,), least=1)},
    "log_line": {
        "line": Param((str,), required=True),
        "stream": Param((str,), "stdout", choices=("stdout", "stderr")),
        "count": Param((int,), 1, least=1),
    },
}

# Kinds that the launcher does to a rank of its node from outside, by the same files; the hook in the rank passes over
# them. An abort of `sigstop` sends SIGCONT. `at_step` means: as soon as the rank's slot shows that this step has begun.
LAUNCHER_KINDS: dict[str, dict[str, Param]] = {
    "kill9": {},
    "kill_signal": {"signal": Param((int,), 15, least=1)},
    "sigstop": {},
}
_ALL_KINDS = {**KINDS, **LAUNCHER_KINDS}

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


@dataclass(frozen=True, slots=True)
class FaultCommand:
    """One fault to inject.

    Attributes:
        id: letters, digits, `_` and `-`; unique within the job, since a rank obeys an id once.
        kind: one of `KINDS` or `LAUNCHER_KINDS`.
        ranks: global ranks that are meant.
        at_step: fire in `telemetry.step_begin` of the first step not below this; None: now.
        attempt: only in this attempt of the job; None: in any.
        params: as `KINDS` lists them; absent ones have their defaults after `decode`.
    """

    id: str
    kind: str
    ranks: tuple[int, ...]
    at_step: int | None = None
    attempt: int | None = None
    params: dict[str, Any] = field(default_factory=dict)


def command_name(drill_id: str) -> str:
    """File name of a drill's command."""
    return f"{drill_id}.json"


def abort_name(drill_id: str) -> str:
    """Name of the (empty) file that aborts a drill."""
    return f"{drill_id}.abort"


def fired_name(drill_id: str, rank: int) -> str:
    """File name of a rank's word that the fault takes effect."""
    return f"{drill_id}.rank-{rank:05d}.fired"


def failed_name(drill_id: str, rank: int) -> str:
    """File name of a rank's word that the fault could not be injected."""
    return f"{drill_id}.rank-{rank:05d}.failed"


def encode(command: FaultCommand) -> str:
    """The command file's text.

    Raises:
        CommandError: a field is wrong.
    """
    text = json.dumps(
        {
            "version": VERSION,
            "id": command.id,
            "kind": command.kind,
            "ranks": list(command.ranks),
            "at_step": command.at_step,
            "attempt": command.attempt,
            "params": command.params,
        },
        indent=1,
    )
    decode(text)
    return text + "\n"


def decode(text: str | bytes) -> FaultCommand:
    """Read a command file; fields and parameters that this version does not know are passed over.

    Raises:
        CommandError: naming the first wrong field.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise CommandError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CommandError("a command is a JSON object")
    if _whole(value.get("version"), "version") != VERSION:
        raise CommandError(f"version: {value['version']}, this Holdfast knows {VERSION}")
    drill_id = value.get("id")
    if not isinstance(drill_id, str) or not _ID.fullmatch(drill_id):
        raise CommandError(f"id: {drill_id!r}, expected letters, digits, '_' and '-', at most 100")
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in _ALL_KINDS:
        raise CommandError(f"kind: {kind!r}, expected one of {', '.join(_ALL_KINDS)}")
    ranks = value.get("ranks")
    if not isinstance(ranks, list) or not ranks:
        raise CommandError(f"ranks: {ranks!r}, expected a list of ranks with at least one")
    params = value.get("params") or {}
    if not isinstance(params, dict):
        raise CommandError(f"params: {params!r}, expected an object")
    return FaultCommand(
        id=drill_id,
        kind=kind,
        ranks=tuple(_whole(rank, "ranks") for rank in ranks),
        at_step=None if value.get("at_step") is None else _whole(value["at_step"], "at_step"),
        attempt=None if value.get("attempt") is None else _whole(value["attempt"], "attempt"),
        params={name: _param(name, param, params) for name, param in {**_ANY_KIND, **_ALL_KINDS[kind]}.items()},
    )


def _whole(value: Any, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise CommandError(f"{name}: {value!r}, expected a whole number, not negative")
    return value


def _param(name: str, param: Param, given: dict[str, Any]) -> Any:
    value: Any = given.get(name)
    if value is None:
        if param.required:
            raise CommandError(f"params.{name}: is missing")
        return param.default
    if wrong := param.wrong(value):
        raise CommandError(f"params.{name}{wrong}")
    return value
