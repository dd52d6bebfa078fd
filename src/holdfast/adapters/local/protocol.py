"""The embedded scheduler's messages: one JSON object per line in, one out.

The daemon decodes requests with `decode_request`; `client` encodes them. A request is told apart by its `op`. The
answer is `{"ok": true, "result": ...}` or `{"ok": false, "error": "...", "code": "...", "retryable": bool}`. Pure: no
time passes here.
"""

from __future__ import annotations

import difflib
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.errors import (
    HoldfastError,
    NotFoundError,
    PermanentOrderError,
    RefusedError,
    TemporaryOrderError,
    UsageError,
    WireError,
)
from holdfast.model.cluster import RecoverySpec, WorldView

LINE_BYTES_MAX = 4 << 20
"""Longest line either side accepts: a submitted environment may be large."""


class Request(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="op"):
    """Base of all requests.

    `order` is the id of the order that it carries out: the same id again has no second effect and gets the same answer.
    """

    order: str = ""


# --- jobs ---


class Submit(Request, frozen=True, kw_only=True, tag="submit"):
    """Put a job into the queue. It runs `argv` once on every node of its allocation, as srun does."""

    argv: tuple[str, ...] = ()
    script: str = ""
    """Text of a script; written into the job's folder and run in place of `argv`, which are then its arguments."""
    nodes: int = 1
    name: str = ""
    user: str = ""
    cwd: str = ""
    env: dict[str, str] = {}
    """Laid over the scheduler's own environment."""
    exclude: tuple[str, ...] = ()
    priority: int = 0
    hold: bool = False
    recovery: RecoverySpec | None = None
    drill_ok: bool = False
    lease_s: float = 6.0
    """How long a launcher that cannot renew its attempt lease lets its ranks live."""
    stop_grace_s: float = 2.0
    """Between SIGTERM to a task's main process and SIGKILL to all of the task."""
    bad_exit_wait_s: float | None = 1.0
    """After the first task that ends badly the others are ended after this long; None: never (srun's --no-kill)."""


class JobRequest(Request, frozen=True, kw_only=True):
    """Base of requests about one job."""

    job: str


class Cancel(JobRequest, frozen=True, kw_only=True, tag="cancel"):
    """End the job for good."""

    who: str = ""
    why: str = ""
    only_waiting: bool = False
    """A job that runs already is let be."""


class RequeueHeldJob(JobRequest, frozen=True, kw_only=True, tag="requeue_held"):
    """Stop the job, put it back into the queue and hold it; answered when the old attempt is provably over."""

    restart_count: int
    why: str = ""
    grace_s: float | None = None


class Exclude(JobRequest, frozen=True, kw_only=True, tag="set_excluded"):
    """Keep the job off these nodes, besides its owner's own exclusions."""

    nodes: tuple[str, ...] = ()


class Release(JobRequest, frozen=True, kw_only=True, tag="release"):
    """Let a held job start. With `who`, a person lifts every hold; without, only the one that a requeue set."""

    who: str = ""
    epoch: int = 0
    restore_step_max: int | None = None


class Hold(JobRequest, frozen=True, kw_only=True, tag="hold"):
    """A person keeps a waiting job from starting."""

    who: str = ""
    why: str = ""


class Jobs(Request, frozen=True, kw_only=True, tag="jobs"):
    """All jobs."""


# --- nodes ---


class NodeRequest(Request, frozen=True, kw_only=True):
    """Base of requests about one node."""

    node: str


class Nodes(Request, frozen=True, kw_only=True, tag="nodes"):
    """All nodes."""


class Drain(NodeRequest, frozen=True, kw_only=True, tag="drain"):
    """Let no new work onto the node. An existing drain and its reason are kept."""

    reason: str = ""
    instance_id: str = ""


class Resume(NodeRequest, frozen=True, kw_only=True, tag="resume"):
    """Lift a drain; with `prefix`, only one whose reason begins with it."""

    prefix: str = ""
    instance_id: str = ""


class Reboot(NodeRequest, frozen=True, kw_only=True, tag="reboot"):
    """Restart the node; answered when it is up with a boot id other than `boot_id` (empty: the present one)."""

    boot_id: str = ""


class Replace(NodeRequest, frozen=True, kw_only=True, tag="replace"):
    """Put another machine in this one's place; answered when it is up with another instance id."""

    instance_id: str = ""
    new_name: str = ""


class AddNode(Request, frozen=True, kw_only=True, tag="add_node"):
    """Let the cluster grow by one node."""

    name: str = ""
    spare: bool = False


class Validate(NodeRequest, frozen=True, kw_only=True, tag="validate"):
    """The scheduler's own quick check: the node answers and its folders can be written."""


class ResetGpus(NodeRequest, frozen=True, kw_only=True, tag="reset_gpu"):
    """Reset emulated GPUs: a line in the kernel log, refused while a job is on the node."""

    gpu: str = ""


# --- watching ---


class Observe(Request, frozen=True, kw_only=True, tag="observe"):
    """The whole world, with the version that `wait_change` counts from."""


class WaitChange(Request, frozen=True, kw_only=True, tag="wait_change"):
    """Answered at once when the world is newer than `after`, else at the next change or after `timeout_s`."""

    after: int
    timeout_s: float = 30.0


class Shutdown(Request, frozen=True, kw_only=True, tag="shutdown"):
    """End the cluster and everything in it."""


# --- breakers: refused unless the cluster is open to drills ---


class Breaker(NodeRequest, frozen=True, kw_only=True):
    """Base of requests that break something on purpose."""


class PowerOff(Breaker, frozen=True, kw_only=True, tag="power_off"):
    """SIGKILL everything on the node at once; nothing there reports."""


class PowerOn(Breaker, frozen=True, kw_only=True, tag="power_on"):
    """Boot a node that is off."""


class Cut(Breaker, frozen=True, kw_only=True, tag="cut"):
    """Cut the node's network for every Holdfast transport."""


class Heal(Breaker, frozen=True, kw_only=True, tag="heal"):
    """Undo `cut`."""


class Kmsg(Breaker, frozen=True, kw_only=True, tag="kmsg"):
    """Append lines to the node's kernel log."""

    text: str


class FillDisk(Breaker, frozen=True, kw_only=True, tag="fill_disk"):
    """Leave no space on the node's scratch file system."""


class FreeDisk(Breaker, frozen=True, kw_only=True, tag="free_disk"):
    """Undo `fill_disk`."""


class Kill(Breaker, frozen=True, kw_only=True, tag="kill"):
    """Signal processes of a node: one pid, `agent`, `task` (main process of the job's task) or `job` (all of it)."""

    signal: int = 9
    pid: int = 0
    target: str = ""


class StopProcess(Breaker, frozen=True, kw_only=True, tag="stop_process"):
    """SIGSTOP (or SIGCONT) with the same targets as `kill`, and `node`: everything on it, silent but not dead."""

    pid: int = 0
    target: str = ""
    resume: bool = False


AnyRequest = (
    Submit
    | Cancel
    | RequeueHeldJob
    | Exclude
    | Release
    | Hold
    | Jobs
    | Nodes
    | Drain
    | Resume
    | Reboot
    | Replace
    | AddNode
    | Validate
    | ResetGpus
    | Observe
    | WaitChange
    | Shutdown
    | PowerOff
    | PowerOn
    | Cut
    | Heal
    | Kmsg
    | FillDisk
    | FreeDisk
    | Kill
    | StopProcess
)

OPS: tuple[str, ...] = tuple(kind.__struct_config__.tag for kind in AnyRequest.__args__)


class Answer(Struct, frozen=True, omit_defaults=True):
    """What comes back. `code` is one of `usage`, `not_found`, `refused`, `temporary`, `permanent`, `failed`."""

    ok: bool
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: str = ""
    code: str = ""
    retryable: bool = False


class Observed(Struct, frozen=True):
    """Result of `observe`."""

    version: int
    world: WorldView


class Changed(Struct, frozen=True):
    """Result of `wait_change`."""

    version: int
    changed: bool


_request: msgspec.json.Decoder[AnyRequest] = msgspec.json.Decoder(AnyRequest)
_answer = msgspec.json.Decoder(Answer)
_encoder = msgspec.json.Encoder()


def encode_request(request: AnyRequest) -> bytes:
    """One line."""
    return _encoder.encode(request) + b"\n"


def decode_request(line: bytes) -> AnyRequest:
    """Read one line. Raises UsageError that names the field, or the nearest op that exists."""
    try:
        return _request.decode(line)
    except msgspec.MsgspecError as error:
        raise UsageError(_mend(line, str(error))) from None


def _mend(line: bytes, problem: str) -> str:
    try:
        op = msgspec.json.decode(line)["op"]
    except (msgspec.MsgspecError, KeyError, TypeError):
        return f'a request is one JSON object with an "op": {problem}'
    if op in OPS:
        return f"request `{op}`: {problem}"
    near = difflib.get_close_matches(str(op), OPS, n=1)
    hint = f"; did you mean `{near[0]}`?" if near else ""
    return f"there is no request `{str(op)[:40]}`{hint}"


def encode_result(result: Any) -> bytes:
    """A good answer as one line."""
    return _encoder.encode(Answer(ok=True, result=msgspec.Raw(_encoder.encode(result)))) + b"\n"


_CODES: tuple[tuple[type[HoldfastError], str], ...] = (
    (NotFoundError, "not_found"),
    (RefusedError, "refused"),
    (UsageError, "usage"),
    (TemporaryOrderError, "temporary"),
    (PermanentOrderError, "permanent"),
)


def encode_error(error: HoldfastError) -> bytes:
    """A bad answer as one line."""
    code = next((name for kind, name in _CODES if isinstance(error, kind)), "failed")
    return _encoder.encode(Answer(ok=False, error=str(error), code=code, retryable=code == "temporary")) + b"\n"


def decode_answer(line: bytes) -> Answer:
    """Read one answer. Raises WireError when the bytes are not one."""
    try:
        return _answer.decode(line)
    except msgspec.MsgspecError as error:
        raise WireError(f"the cluster's answer cannot be read: {error}") from None


def error_of(answer: Answer) -> HoldfastError:
    """The error that a bad answer stands for."""
    kinds = {name: kind for kind, name in _CODES}
    return kinds.get(answer.code, PermanentOrderError)(answer.error)
