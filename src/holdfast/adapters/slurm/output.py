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
from collections.abc import Iterable
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
    eligible_at: float = 0.0
    stdout: str = ""
    stderr: str = ""
    workdir: str = ""
    command: str = ""
    dependency: str = ""
    reservation: str = ""
    requeue: bool = True
    priority: int = 1
    batch_host: str = ""
    batch: bool = True

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
    slurm_user: str = ""
    kill_wait_s: int = 30
    slurmd_timeout_s: int = 300
    min_job_age_s: int = 300
    slurmd_port: int = 0
    """Where a node's slurmd listens that has no port of its own; 0: not known."""
    reboots: bool = False
    """There is a RebootProgram."""
    hides_jobs: bool = False
    """PrivateData keeps jobs of other users from whoever is no operator."""


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


class _Job(Struct):
    job_id: Any = None
    array_job_id: Any = None
    array_task_id: Any = None
    array_task_string: Any = None
    het_job_id: Any = None
    het_job_offset: Any = None
    name: Any = None
    user_name: Any = None
    user_id: Any = None
    group_id: Any = None
    partition: Any = None
    job_state: Any = None
    state_reason: Any = None
    state_description: Any = None
    restart_cnt: Any = None
    comment: Any = None
    admin_comment: Any = None
    nodes: Any = None
    excluded_nodes: Any = None
    node_count: Any = None
    exit_code: Any = None
    submit_time: Any = None
    start_time: Any = None
    end_time: Any = None
    eligible_time: Any = None
    standard_output: Any = None
    standard_error: Any = None
    current_working_directory: Any = None
    command: Any = None
    dependency: Any = None
    resv_name: Any = None
    requeue: Any = None
    priority: Any = None
    batch_host: Any = None
    batch_flag: Any = None


class _Jobs(Struct):
    jobs: list[_Job]


_jobs_decoder = msgspec.json.Decoder(_Jobs)


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
    return [job for job in map(_job, found.jobs) if job is not None]


class _JobPulse(Struct):
    job_id: msgspec.Raw = msgspec.Raw()
    array_task_string: msgspec.Raw = msgspec.Raw()
    job_state: msgspec.Raw = msgspec.Raw()
    state_reason: msgspec.Raw = msgspec.Raw()
    priority: msgspec.Raw = msgspec.Raw()
    nodes: msgspec.Raw = msgspec.Raw()
    submit_time: msgspec.Raw = msgspec.Raw()
    excluded_nodes: msgspec.Raw = msgspec.Raw()


class _JobPulses(Struct):
    jobs: list[_JobPulse]


_job_pulse_decoder = msgspec.json.Decoder(_JobPulses)


def pulse_of_jobs(raw: bytes) -> bytes:
    """Of a document of jobs, what differs when something changed that matters, as `commands.PULSE_JOBS` prints it.

    Raises:
        WireError: it is no such document.
    """
    try:
        jobs = _job_pulse_decoder.decode(raw).jobs
    except msgspec.MsgspecError as error:
        raise WireError(f"no list of jobs: {error}") from error
    return pulse_of(jobs)


def pulse_of(records: Iterable[Struct]) -> bytes:
    """Records of `msgspec.Raw` fields, one per line, whatever the order that they came in."""
    return b"\n".join(sorted(b"|".join(map(bytes, astuple(record))) for record in records))


def _job(raw: _Job) -> SlurmJob | None:
    job_id = number(raw.job_id)
    if job_id is None:
        return None
    task = number(raw.array_task_id)
    array_job = number(raw.array_job_id, 0) or 0
    code, signal = exit_of(raw.exit_code)
    comment = raw.comment.get("job") if isinstance(raw.comment, dict) else raw.comment
    return SlurmJob(
        id=str(job_id),
        array_job=array_job,
        array_task=task if array_job and task is not None and task < NO_TASK else None,
        array_text=text(raw.array_task_string),
        het_job=number(raw.het_job_id, 0) or 0,
        het_offset=number(raw.het_job_offset, 0) or 0,
        name=text(raw.name),
        user=text(raw.user_name),
        uid=number(raw.user_id, -1) or 0,
        gid=number(raw.group_id, -1) or 0,
        partition=text(raw.partition),
        states=frozenset(words(raw.job_state)),
        reason=text(raw.state_reason),
        description=text(raw.state_description),
        restart_count=number(raw.restart_cnt, 0) or 0,
        comment=text(comment),
        admin_comment=text(raw.comment.get("administrator") if isinstance(raw.comment, dict) else raw.admin_comment),
        nodes=node_names(text(raw.nodes)),
        excluded=node_names(text(raw.excluded_nodes)),
        want_nodes=max(1, number(raw.node_count, 1) or 1),
        exit_code=code,
        signal=signal,
        submitted_at=seconds(raw.submit_time),
        started_at=seconds(raw.start_time),
        ended_at=seconds(raw.end_time),
        eligible_at=seconds(raw.eligible_time),
        stdout=text(raw.standard_output),
        stderr=text(raw.standard_error),
        workdir=text(raw.current_working_directory),
        command=text(raw.command),
        dependency=text(raw.dependency),
        reservation=text(raw.resv_name),
        requeue=raw.requeue is not False and number(raw.requeue, 1) != 0,
        priority=1 if (found := number(raw.priority, 1)) is None else found,
        batch_host=text(raw.batch_host),
        batch=raw.batch_flag is not False,
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
    state = field("JobState")
    return SlurmJob(
        id=found.group(1),
        array_job=int(found.group(2) or 0),
        array_task=int(task) if task.isdecimal() else None,
        array_text="" if task.isdecimal() else task,
        het_job=number(field("HetJobId"), 0) or 0,
        het_offset=number(field("HetJobOffset"), 0) or 0,
        name=name,
        user=owner.group(1) if owner is not None else "",
        uid=int(owner.group(2)) if owner is not None else -1,
        gid=int(owner.group(3)) if owner is not None else -1,
        partition=field("Partition"),
        states=frozenset(words(state)),
        reason=field("Reason"),
        restart_count=number(field("Restarts"), 0) or 0,
        comment=words_of("Comment", "(?:StdErr|Container|StdIn|StdOut)"),
        admin_comment=words_of("AdminComment", "(?:SystemComment|Comment|StdErr|Container|StdIn|StdOut)"),
        nodes=node_names(field("NodeList")),
        excluded=node_names(field("ExcNodeList")),
        want_nodes=max(1, number(field("NumNodes").partition("-")[0], 1) or 1),
        exit_code=int(code.group(1)) if code is not None else None,
        signal=int(code.group(2)) or None if code is not None else None,
        submitted_at=time_of(field("SubmitTime")),
        started_at=time_of(field("StartTime")),
        ended_at=time_of(field("EndTime")),
        eligible_at=time_of(field("EligibleTime")),
        stdout=words_of("StdOut", "(?:Power|NtasksPerTRES|TresPer|MailUser)"),
        workdir=words_of("WorkDir", "(?:AdminComment|SystemComment|Comment|StdErr)"),
        command=words_of("Command", "WorkDir"),
        dependency=field("Dependency"),
        reservation=field("Reservation"),
        requeue=field("Requeue") != "0",
        priority=number(field("Priority"), 1) or 0,
        batch_host=field("BatchHost"),
        batch=field("BatchFlag") != "0",
    )


# --- the rest ---------------------------------------------------------------------------------------------------------


def facts_of_config(raw: str) -> ClusterFacts:
    """The facts in `scontrol show config`."""
    told: dict[str, str] = {}
    for line in raw.splitlines():
        key, mark, value = line.partition("=")
        if mark:
            told.setdefault(key.strip(), value.strip())

    def count(key: str, default: int) -> int:
        hit = re.match(r"\d+", told.get(key, ""))
        return int(hit.group()) if hit is not None else default

    return ClusterFacts(
        name=told.get("ClusterName", ""),
        version=told.get("SLURM_VERSION", ""),
        accounting="slurmdbd" in told.get("AccountingStorageType", ""),
        slurm_user=told.get("SlurmUser", "").partition("(")[0],
        kill_wait_s=count("KillWait", 30),
        slurmd_timeout_s=count("SlurmdTimeout", 300),
        min_job_age_s=count("MinJobAge", 300),
        slurmd_port=count("SlurmdPort", 0),
        reboots=bool(text(told.get("RebootProgram", ""))),
        hides_jobs=bool({"jobs", "all"} & {word.strip() for word in told.get("PrivateData", "").split(",")}),
    )


def topology_of(raw: str) -> dict[str, str]:
    """Node -> path of switches from the top, `core/leaf1`, from `scontrol show topology`."""
    leaf: dict[str, str] = {}
    above: dict[str, str] = {}
    for line in raw.splitlines():
        told = dict(part.split("=", 1) for part in line.split() if "=" in part)
        name = told.get("SwitchName", "")
        if not name:
            continue
        if text(told.get("Switches", "")):
            above.update(dict.fromkeys(node_names(told["Switches"]), name))
        elif "Nodes" in told:
            leaf.update(dict.fromkeys(node_names(told["Nodes"]), name))
    paths: dict[str, str] = {}
    for node, switch in leaf.items():
        path = [switch]
        while (higher := above.get(path[0])) is not None and higher not in path:
            path.insert(0, higher)
        paths[node] = "/".join(path)
    return paths


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


class Load(Struct, frozen=True, kw_only=True):
    """How busy slurmctld is, from `sdiag`."""

    threads: int = 0
    queue: int = 0
    jobs_requeued: int = 0
    calls: dict[str, tuple[int, int]] = {}
    """Message type -> how often, and mean microseconds."""


_CALL = re.compile(r"^\s+([A-Z0-9_]+)\s*\(\s*\d+\) count:(\d+)\s+ave_time:(\d+)", re.MULTILINE)


def load_of(raw: str) -> Load:
    """The load in `sdiag`'s text."""

    def count(words_before: str) -> int:
        hit = re.search(rf"^{words_before}:\s+(\d+)", raw, re.MULTILINE)
        return int(hit.group(1)) if hit is not None else 0

    calls = {name: (int(times), int(mean)) for name, times, mean in _CALL.findall(raw)}
    return Load(
        threads=count("Server thread count"),
        queue=count("Agent queue size"),
        jobs_requeued=calls.get("REQUEST_JOB_REQUEUE", (0, 0))[0],
        calls=calls,
    )
