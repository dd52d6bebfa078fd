"""What Slurm's tools print -> plain facts. Pure; tested on recorded outputs of 22.05, 23.02, 23.11 and 25.11.

`squeue --json` gives the jobs: a job's name is the user's own text and may hold anything, line ends too, so text forms
of it can be forged and only JSON keeps users apart. Nodes are `node_output.py`'s. A field may be absent, a number,
`{"set", "infinite", "number"}`, a string or a list, depending on the version; `number` and `words` take each of these.
Times are Unix seconds: the tools are run with `TZ=UTC`.
"""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

import msgspec
from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException
from msgspec import Struct
from msgspec.structs import astuple

from holdfast.errors import WireError

NO_TASK = 0xFFFF_FFFE
"""Slurm's NO_VAL: "not an array task", as some versions print it."""
_LONG_AGO = 10.0
"""Times below this many seconds are "never"."""


class SlurmJob(Struct, frozen=True, kw_only=True):
    """One job record, as Slurm gives it."""

    id: str
    array_job: int = 0
    array_task: int | None = None
    array_text: str = ""
    """Tasks of an array that have not been split off yet, such as `2-3%1`."""
    het_job: int = 0
    het_offset: int = 0
    name: str = ""
    user: str = ""
    account: str = ""
    uid: int = -1
    gid: int = -1
    partition: str = ""
    states: frozenset[str] = frozenset()
    """Base state and flags: `{"PENDING"}`, `{"FAILED", "COMPLETING"}`."""
    reason: str = ""
    description: str = ""
    restart_count: int = 0
    comment: str = ""
    admin_comment: str = ""
    nodes: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    want_nodes: int = 1
    exit_code: int | None = None
    signal: int | None = None
    submitted_at: float = 0.0
    started_at: float = 0.0
    ended_at: float = 0.0
    stdout: str = ""
    stderr: str = ""
    workdir: str = ""
    command: str = ""
    dependency: str = ""
    requeue: bool = True
    priority: int = 1
    batch_host: str = ""
    batch: bool = True
    is_expedited: bool = False
    """`--requeue=expedite` (25.11)."""

    @property
    def ref(self) -> str:
        """How commands name it alone: an array's last task has the array's own id, so tasks are named by number."""
        if self.array_task is not None and self.array_job:
            return f"{self.array_job}_{self.array_task}"
        return self.id


class ClusterFacts(Struct, frozen=True, kw_only=True):
    """What `scontrol show config` says that recovery depends on."""

    name: str = ""
    version: str = ""
    accounting: bool = False
    min_job_age_s: int = 300
    slurmd_timeout_s: int = 300
    """A node that does not answer for so long is set DOWN."""
    slurmd_port: int = 0
    """Where a node's slurmd listens that has no port of its own; 0: not known."""
    reboots: bool = False
    """There is a RebootProgram."""
    hides_jobs: bool = False
    """PrivateData keeps jobs of other users from whoever is no operator."""
    may_shrink: bool = True
    """A job may let nodes go."""
    requeue_delay_s: int = 120
    """A requeued job waits this long, and a second more, unless somebody pulls its begin time in."""


NO_SHRINK = (
    "Slurm lets no job shrink here (SchedulerParameters=disable_job_shrink), so a job whose node is lost is ended or "
    "requeued at SlurmdTimeout, also where it goes on without that node"
)
"""Told to owners of jobs of several nodes when these begin, and by `holdfast doctor`."""
NO_REQUEUE = (
    "it was submitted with --no-requeue, or without --requeue where slurm.conf has JobRequeue=0, so it is not requeued"
)
"""Told to the owner of a job that asks for recovery all the same, and when it comes to that."""


# --- shapes -----------------------------------------------------------------------------------------------------------


def number(value: Any, default: int | None = None) -> int | None:
    """A number in any of its shapes; `default` when it is not set, infinite or something else."""
    if isinstance(value, dict):
        if value.get("set") is False or value.get("infinite") is True:
            return default
        return number(value.get("number"), default)
    if isinstance(value, bool) or value is None:
        return default
    if isinstance(value, int | float):
        return int(value)
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]+", value.strip()):
        return int(value)
    return default


def words(value: Any) -> tuple[str, ...]:
    """A list of words in any of its shapes: `"A+B"`, `["A", "B"]`, nothing."""
    if isinstance(value, str):
        return tuple(part for part in re.split(r"[+,]", value) if part)
    if isinstance(value, list | tuple):
        return tuple(str(part) for part in value)
    return ()


def text(value: Any) -> str:
    """A string; anything else is an empty one."""
    return value if isinstance(value, str) and value not in {"(null)", "N/A", "None assigned"} else ""


def seconds(value: Any) -> float:
    """A time in Unix seconds; 0.0 when it is not known."""
    found = number(value, 0) or 0
    return float(found) if found > _LONG_AGO else 0.0


@lru_cache(maxsize=8192)
def node_names(listed: str) -> tuple[str, ...]:
    """`node[01-03,07]` -> each name, in order. What is no node list gives nothing."""
    plain = text(listed.strip())
    if not plain:
        return ()
    try:
        return tuple(NodeSet(plain, resolver=RESOLVER_NOGROUP))
    except NodeSetException:
        return ()


def folded(names: tuple[str, ...] | list[str] | frozenset[str] | set[str]) -> str:
    """Names -> `node[01-03,07]`, for commands."""
    return str(NodeSet.fromlist(sorted(names), resolver=RESOLVER_NOGROUP))


def exit_of(value: Any) -> tuple[int | None, int | None]:
    """Exit code and signal from a wait status, or from the object that 23.11 and later print."""
    if isinstance(value, dict) and ("return_code" in value or "signal" in value):
        signal = value.get("signal")
        named = signal if isinstance(signal, dict) else {}
        killed = number(named.get("id", named.get("signal_id")), 0) or 0
        return number(value.get("return_code"), 0), killed or None
    status = number(value)
    if status is None:
        return None, None
    return status >> 8 & 0xFF, status & 0x7F or None


def time_of(value: str) -> float:
    """`2026-11-21T19:40:48` (UTC) -> Unix seconds; 0.0 for `Unknown`, `None` and the like."""
    try:
        return float(calendar.timegm(time.strptime(value, "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        return 0.0


# --- jobs -------------------------------------------------------------------------------------------------------------


def _count(value: Any) -> int:
    return number(value, 0) or 0


def _owner(value: Any) -> int:
    return number(value, -1) or 0


def _listed(value: Any) -> tuple[str, ...]:
    return node_names(text(value))


_READ: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "array_text": ("array_task_string", text),
    "het_job": ("het_job_id", _count),
    "het_offset": ("het_job_offset", _count),
    "name": ("name", text),
    "user": ("user_name", text),
    "account": ("account", text),
    "uid": ("user_id", _owner),
    "gid": ("group_id", _owner),
    "partition": ("partition", text),
    "states": ("job_state", lambda value: frozenset(words(value))),
    "reason": ("state_reason", text),
    "description": ("state_description", text),
    "restart_count": ("restart_cnt", _count),
    "nodes": ("nodes", _listed),
    "excluded": ("excluded_nodes", _listed),
    "want_nodes": ("node_count", lambda value: max(1, number(value, 1) or 1)),
    "submitted_at": ("submit_time", seconds),
    "started_at": ("start_time", seconds),
    "ended_at": ("end_time", seconds),
    "stdout": ("standard_output", text),
    "stderr": ("standard_error", text),
    "workdir": ("current_working_directory", text),
    "command": ("command", text),
    "dependency": ("dependency", text),
    "requeue": ("requeue", lambda value: value is not False and number(value, 1) != 0),
    "priority": ("priority", lambda value: 1 if (found := number(value, 1)) is None else found),
    "batch_host": ("batch_host", text),
    "batch": ("batch_flag", lambda value: value is not False),
    "is_expedited": ("flags", lambda value: "EXPEDITED_REQUEUE" in words(value)),
}
"""Field of `SlurmJob` -> that of the JSON, and how it is read. `_job` reads the others."""


def record(fields: Iterable[str], kind: Any = Any, default: Any = None) -> type[Struct]:
    """A struct that takes these fields of a record and passes over all others."""
    return msgspec.defstruct("Record", [(name, kind, default) for name in fields])


def decoder_of(what: str, kind: type[Struct]) -> msgspec.json.Decoder[Any]:
    """Reads a document whose field `what` is a list of such records."""
    return msgspec.json.Decoder(msgspec.defstruct("Document", [(what, list[kind])]))  # type: ignore[valid-type]


_Job: Any = record(
    [
        "job_id",
        "array_job_id",
        "array_task_id",
        "comment",
        "admin_comment",
        "exit_code",
        *(key for key, _ in _READ.values()),
    ]
)
_jobs_decoder = decoder_of("jobs", _Job)
PULSE = {
    "jobs": "job_id array_task_string job_state state_reason priority nodes submit_time excluded_nodes",
    "nodes": "name state state_flags reason reason_changed_at",
}
"""Of a document of jobs, or of nodes, what differs when something changed that matters; see `commands.PULSE_JOBS`."""
_pulses = {what: decoder_of(what, record(fields.split(), msgspec.Raw, msgspec.Raw())) for what, fields in PULSE.items()}


def jobs_of_json(raw: bytes) -> list[SlurmJob]:
    """The jobs in what `squeue --json` printed, any version's.

    Raises:
        WireError: it is no such document.
    """
    start = raw.find(b"{")
    try:
        found = _jobs_decoder.decode(raw[max(start, 0) :])
    except msgspec.MsgspecError as error:
        raise WireError(f"squeue --json printed something else: {error}") from error
    return [_job(job) for job in found.jobs if number(job.job_id) is not None]


def pulse_of(what: str, raw: bytes) -> bytes:
    """Of a document of `jobs` or `nodes`, what differs when something changed that matters, in any order of records.

    Raises:
        WireError: it is no such document.
    """
    try:
        records = getattr(_pulses[what].decode(raw), what)
    except msgspec.MsgspecError as error:
        raise WireError(f"no list of {what}: {error}") from error
    return b"\n".join(sorted(b"|".join(map(bytes, astuple(one))) for one in records))


def _job(raw: Any) -> SlurmJob:
    task = number(raw.array_task_id)
    array_job = number(raw.array_job_id, 0) or 0
    code, signal = exit_of(raw.exit_code)
    told = raw.comment if isinstance(raw.comment, dict) else {"job": raw.comment, "administrator": raw.admin_comment}
    return SlurmJob(
        id=str(number(raw.job_id)),
        array_job=array_job,
        array_task=task if array_job and task is not None and task < NO_TASK else None,
        comment=text(told.get("job")),
        admin_comment=text(told.get("administrator")),
        exit_code=code,
        signal=signal,
        **{field: read(getattr(raw, key)) for field, (key, read) in _READ.items()},
    )


_RECORD = re.compile(r"^JobId=([0-9]+) (?:ArrayJobId=([0-9]+) (?:ArrayTaskId=(\S+) )?)?", re.MULTILINE)
_EXIT = re.compile(r"^(\d+):(\d+)$")


def jobs_of_text(raw: str) -> tuple[list[SlurmJob], list[str]]:
    """The jobs in `scontrol show job -o`, where squeue was built without JSON. Second: ids that cannot be trusted.

    A job's name may hold a whole forged record, so an id that stands in two records is believed in neither, nor is a
    record that was cut in two; fields are read from behind the last place that looks like the name's end.
    """
    starts = [*_RECORD.finditer(raw)]
    ends = [found.start() for found in starts[1:]] + [len(raw)]
    count: dict[str, int] = {}
    for found in starts:
        count[found.group(1)] = count.get(found.group(1), 0) + 1
    read = [_job_of_text(found, raw[found.end() : end]) for found, end in zip(starts, ends, strict=True)]
    jobs = [job for job in read if count[job.id] == 1 and job.uid >= 0 and job.states]
    return jobs, sorted(set(count) - {job.id for job in jobs})


_NAME_END = re.compile(r" UserId=([^\s()]+)\((\d+)\) GroupId=[^\s()]+\((\d+)\) ")


def _job_of_text(found: re.Match[str], rest: str) -> SlurmJob:
    owners = [*_NAME_END.finditer(rest)]
    owner = owners[-1] if owners else None
    name = rest[: owner.start()].removeprefix("JobName=") if owner is not None else ""
    body = " " + rest[owner.end() :] if owner is not None else " " + rest

    def field(key: str) -> str:
        hit = re.search(rf" {re.escape(key)}=(\S*)", body)
        return text(hit.group(1)) if hit is not None else ""

    def words_of(key: str, following: str) -> str:
        hit = re.search(rf" {key}=(.*?) +{following}=", body, re.DOTALL)
        return text(hit.group(1)) if hit is not None else ""

    code = _EXIT.match(field("ExitCode"))
    task = found.group(3) or ""
    return _job(
        _Job(
            job_id=found.group(1),
            array_job_id=found.group(2),
            array_task_id=task,
            array_task_string="" if task.isdecimal() else task,
            het_job_id=field("HetJobId"),
            het_job_offset=field("HetJobOffset"),
            name=name,
            user_name=owner.group(1) if owner is not None else "",
            user_id=owner.group(2) if owner is not None else -1,
            group_id=owner.group(3) if owner is not None else -1,
            account=field("Account"),
            partition=field("Partition"),
            job_state=field("JobState"),
            state_reason=field("Reason"),
            restart_cnt=field("Restarts"),
            comment=words_of("Comment", "(?:StdErr|Container|StdIn|StdOut)"),
            admin_comment=words_of("AdminComment", "(?:SystemComment|Comment|StdErr|Container|StdIn|StdOut)"),
            nodes=field("NodeList"),
            excluded_nodes=field("ExcNodeList"),
            node_count=field("NumNodes").partition("-")[0],
            exit_code={"return_code": code[1], "signal": {"id": code[2]}} if code is not None else None,
            submit_time=time_of(field("SubmitTime")),
            start_time=time_of(field("StartTime")),
            end_time=time_of(field("EndTime")),
            standard_output=words_of("StdOut", "(?:Power|NtasksPerTRES|TresPer|MailUser)"),
            current_working_directory=words_of("WorkDir", "(?:AdminComment|SystemComment|Comment|StdErr)"),
            command=words_of("Command", "WorkDir"),
            dependency=field("Dependency"),
            requeue=field("Requeue"),
            priority=field("Priority"),
            batch_host=field("BatchHost"),
            batch_flag=field("BatchFlag") != "0",
        )
    )


# --- the rest ---------------------------------------------------------------------------------------------------------


def config_of(raw: str) -> dict[str, str]:
    """Every `Key = value` of `scontrol show config`; of a key that stands there twice the first."""
    told: dict[str, str] = {}
    for line in raw.splitlines():
        key, mark, value = line.partition("=")
        if mark:
            told.setdefault(key.strip(), value.strip())
    return told


def leading_number(told: Mapping[str, str], key: str) -> int | None:
    """`120` of `120 sec`; None where the key is missing or says no number."""
    hit = re.match(r"\d+", told.get(key, ""))
    return int(hit.group()) if hit is not None else None


def may_shrink(told: Mapping[str, str]) -> bool:
    """A job may let nodes go, by what `config_of` read."""
    return "disable_job_shrink" not in told.get("SchedulerParameters", "").casefold()


def requeue_delay_s(told: Mapping[str, str]) -> int:
    """`requeue_delay` of SchedulerParameters (25.11), else `cred_expire` of AuthInfo, else 120."""
    said = [("SchedulerParameters", "requeue_delay"), ("AuthInfo", "cred_expire")]
    hits = (re.search(rf"\b{name}=(\d+)", told.get(key, ""), re.IGNORECASE) for key, name in said)
    return next((int(hit[1]) for hit in hits if hit is not None), 120)


def facts_of_config(raw: str) -> ClusterFacts:
    """The facts in `scontrol show config`."""
    told = config_of(raw)
    job_age_s = leading_number(told, "MinJobAge")
    return ClusterFacts(
        name=told.get("ClusterName", ""),
        version=told.get("SLURM_VERSION", ""),
        accounting="slurmdbd" in told.get("AccountingStorageType", ""),
        min_job_age_s=300 if job_age_s is None else job_age_s,
        slurmd_timeout_s=leading_number(told, "SlurmdTimeout") or 300,
        slurmd_port=leading_number(told, "SlurmdPort") or 0,
        reboots=bool(text(told.get("RebootProgram", ""))),
        may_shrink=may_shrink(told),
        requeue_delay_s=requeue_delay_s(told),
        hides_jobs=bool({"jobs", "all"} & {word.strip() for word in told.get("PrivateData", "").split(",")}),
    )


class JobEnd(Struct, frozen=True, kw_only=True):
    """How accounting says that a job ended."""

    states: frozenset[str]
    exit_code: int | None = None
    signal: int | None = None
    at: float = 0.0


def ends_of_sacct(raw: str) -> dict[str, JobEnd]:
    """Job id -> its newest run's end, in what `commands.ends` printed."""
    ends: dict[str, JobEnd] = {}
    for line in raw.splitlines():
        fields = line.split("|")
        if len(fields) < 4 or not fields[0].isdecimal():
            continue
        code = _EXIT.match(fields[2])
        ends[fields[0]] = JobEnd(
            states=frozenset({fields[1].split(" ", 1)[0]}),
            exit_code=int(code.group(1)) if code is not None else None,
            signal=int(code.group(2)) or None if code is not None else None,
            at=time_of(fields[3]),
        )
    return ends
