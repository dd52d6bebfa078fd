"""The `scheduler` suite: Slurm settings that would defeat recovery, with the line for slurm.conf. A step.

`judge` is pure: what `scontrol show config` and `show partition` print comes in. The meanings are those of
slurm.conf(5) and torchrun's documentation; what a value must be comes from what Holdfast does (docs/slurm.md). Time:
scontrol's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from holdfast.adapters.slurm.output import NO_SHRINK, config_of, leading_number, may_shrink
from holdfast.validate import tool_runs
from holdfast.validate.registry import Options
from holdfast.validate.results import Item, Verdict, absent, failed, warned

LIMIT_S = 20.0
TORCHRUN_JOIN_S = 600.0
"""torchrun's default rendezvous join time-out (torch.distributed.elastic, `join_timeout`)."""
NOWHERE = "Could not establish a configuration source"
NONE = "(null)"
LET_GO_S = 30
"""A lost node has left its job by then: the lease (3 s) and the start of the next attempt elsewhere."""
NEVER = 65_533
"""Slurm's INFINITE and NO_VAL for 16 bits begin here."""


def look(options: Options) -> list[Item]:
    """The step."""
    path = tool_runs.where("scontrol")
    if not path:
        return [absent("scheduler.slurm", "there is no scontrol here")]
    config = tool_runs.run((path, "show", "config"), LIMIT_S)
    if NOWHERE in config.err:
        return [absent("scheduler.slurm", "this machine belongs to no Slurm cluster")]
    if config.hung or config.code:
        why = f"scontrol did not answer within {LIMIT_S:g} s" if config.hung else f"scontrol: {config.said}"
        return [failed("scheduler.slurm", why, "see that slurmctld runs and that this node reaches it")]
    partitions = tool_runs.run((path, "show", "partition", "-o"), LIMIT_S)
    return judge(config.out, partitions.out, options.rendezvous_s, options.replacement_s)


def judge(config: str, partitions: str, rendezvous_s: float = 0.0, replacement_s: float = 1800.0) -> list[Item]:
    """What stands in recovery's way. An item each, also for what is well."""
    known = config_of(config)
    return [
        Item(name="scheduler.slurm", text=known.get("SLURM_VERSION", "unknown version")),
        *(look(known) for look in _SETTINGS),
        *_partitions(partitions),
        _rendezvous(rendezvous_s, replacement_s),
    ]


def _item(name: str, text: str, why: str = "", line: str = "", *, fails: bool = False) -> Item:
    """A setting; `why` it is bad, if it is, and the line of slurm.conf to have instead."""
    if not why:
        return Item(name=f"scheduler.{name}", text=text)
    return (failed if fails else warned)(f"scheduler.{name}", why, f"slurm.conf: {line}", text=text)


def _requeue(known: Mapping[str, str]) -> Item:
    value = known.get("JobRequeue", "1")
    why = "a batch job is not requeued when its node fails, unless it was submitted with --requeue"
    return _item("JobRequeue", value, why if value == "0" else "", "JobRequeue=1", fails=True)


def _return_to_service(known: Mapping[str, str]) -> Item:
    value = known.get("ReturnToService", "0")
    why = {
        "2": "a node that was marked down returns by itself as soon as it registers, repaired or not",
        "0": "a node that went down stays so for ever, also after a reboot that mended it",
    }.get(value, "")
    return _item("ReturnToService", value, why, "ReturnToService=1")


def _slurmd_timeout(known: Mapping[str, str]) -> Item:
    value, why = leading_number(known, "SlurmdTimeout"), ""
    if value == 0:
        why = "Slurm never notices that a node has gone: its job hangs until somebody cancels it"
    elif value is not None and value < LET_GO_S:
        why = f"Slurm gives a lost node up after {value} s and ends its job, maybe before the job has let it go"
    elif value is not None and value > 600:
        why = f"a lost node is noticed by Slurm after {value} s, when NCCL has given up (600 s) already"
    return _item("SlurmdTimeout", f"{value} s", why, "SlurmdTimeout=120", fails=value == 0)


def _shrink(known: Mapping[str, str]) -> Item:
    if may_shrink(known):
        return _item("job_shrink", "allowed")
    line = "take disable_job_shrink out of SchedulerParameters"
    return _item("job_shrink", "disabled", NO_SHRINK, line)


def lost_nodes(config: str) -> list[Item]:
    """Of `judge` what a job needs that outlives a lost node (docs/slurm.md). Bad settings alone."""
    known = config_of(config)
    looked = (look(known) for look in (_slurmd_timeout, _shrink, _return_to_service, _requeue))
    return [item for item in looked if item.verdict is not Verdict.PASS]


def _kill_wait(known: Mapping[str, str]) -> Item:
    value = leading_number(known, "KillWait") or 30
    why = f"every stop of an attempt takes up to {value} s" if value > 120 else ""
    return _item("KillWait", f"{value} s", why, "KillWait=30")


def _unkillable(known: Mapping[str, str]) -> Item:
    value, least = leading_number(known, "UnkillableStepTimeout") or 60, 180
    message, why = leading_number(known, "MessageTimeout") or 10, ""
    if value < 5 * message:
        least = max(180, 5 * message)
        why = f"below five times MessageTimeout ({message} s) slurmctld drains nodes that only end their job slowly"
    elif value < 120 and not known.get("UnkillableStepProgram", NONE).startswith("/"):
        why = "a rank that writes a checkpoint or dumps core takes longer to end, and its node is drained for it"
    return _item("UnkillableStepTimeout", f"{value} s", why, f"UnkillableStepTimeout={least}")


def _resume(known: Mapping[str, str]) -> Item:
    value, why = leading_number(known, "ResumeTimeout") or 60, ""
    if known.get("RebootProgram", NONE).startswith("/") and value < 300:
        why = f"a node that is rebooted and not back within {value} s is marked down; servers with GPUs take minutes"
    return _item("ResumeTimeout", f"{value} s", why, "ResumeTimeout=900")


def _prolog(known: Mapping[str, str]) -> Item:
    has = any(known.get(key, NONE).startswith("/") or known.get(f"{key}[0]") for key in ("Prolog", "Epilog"))
    value = leading_number(known, "PrologEpilogTimeout")
    bad = has and (value is None or value >= NEVER)
    text = known.get("PrologEpilogTimeout", "not set" if bad else "no prolog")
    why = "a Prolog or Epilog that hangs (a dead mount is enough) keeps its node from work for ever" if bad else ""
    return _item("PrologEpilogTimeout", text, why, "PrologEpilogTimeout=300")


def _health_check(known: Mapping[str, str]) -> Item:
    program, interval = known.get("HealthCheckProgram", NONE), leading_number(known, "HealthCheckInterval") or 0
    if program.startswith("/") and interval == 0:
        return _item("HealthCheckInterval", "0 s", f"{program} is named but never called", "HealthCheckInterval=300")
    return _item("HealthCheckProgram", "none" if program == NONE else f"{program} every {interval} s")


def _reboot(known: Mapping[str, str]) -> Item:
    program = known.get("RebootProgram", NONE)
    if program != NONE:
        return _item("RebootProgram", program)
    why = "nodes cannot be rebooted through Slurm: that rung of the repair ladder is missing"
    return _item("RebootProgram", "none", why, "RebootProgram=/usr/sbin/reboot")


def _history(known: Mapping[str, str]) -> Item:
    value, why = leading_number(known, "MinJobAge"), ""
    if value is not None and 0 < value < 60:
        why = f"slurmctld forgets an ended job after {value} s, before its end can be read without accounting"
    return _item("MinJobAge", f"{value} s", why, "MinJobAge=300")


_SETTINGS = (
    _requeue,
    _return_to_service,
    _slurmd_timeout,
    _shrink,
    _kill_wait,
    _unkillable,
    _resume,
    _prolog,
    _health_check,
    _reboot,
    _history,
)


def _partitions(raw: str) -> Iterator[Item]:
    for line in raw.splitlines():
        facts = dict(word.split("=", 1) for word in line.split() if "=" in word)
        name = facts.get("PartitionName")
        if not name:
            continue
        item, mode, state = f"partition.{name}", facts.get("PreemptMode", "OFF"), facts.get("State", "UP")
        if "CANCEL" in mode:
            why = f"a job that is preempted in {name} is cancelled and does not come back"
            yield _item(item, mode, why, f"PartitionName={name} ... PreemptMode=REQUEUE")
        elif state != "UP":
            why = f"partition {name} is {state}: what is requeued there never starts"
            yield _item(item, state, why, f"scontrol update PartitionName={name} State=UP")
        else:
            yield _item(item, f"up, MaxTime={facts.get('MaxTime', '?')}")


def _rendezvous(rendezvous_s: float, replacement_s: float) -> Item:
    """Torchrun must wait longer for its nodes than their replacement takes."""
    waits = rendezvous_s or TORCHRUN_JOIN_S
    text = f"{waits:g} s, a replacement takes {replacement_s:g} s"
    if waits < replacement_s:
        why = f"torchrun gives up after {waits:g} s, before a node is replaced ({replacement_s:g} s)"
        advice = f"torchrun --rdzv-conf=join_timeout={int(replacement_s * 1.25)},timeout={int(replacement_s * 1.25)}"
        return warned("scheduler.rendezvous", why, advice, text=text)
    return Item(name="scheduler.rendezvous", text=text)
