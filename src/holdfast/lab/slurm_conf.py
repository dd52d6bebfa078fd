"""The configuration files of a Slurm lab, from its facts. Pure; no time passes.

Called by `slurm_lab` before the daemons start. What a setting is for stands beside it; all others are Slurm's own.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.lab.settings import NODE_PORT, LabFacts

CLUSTER = "lab"
DBD_PORT, SQL_PORT = 1, 2
"""Offsets into the lab's ports; slurmctld has the first."""
DYNAMIC_MAX = 64
"""Nodes that may join later without standing in slurm.conf."""

QUICK = """\
SlurmctldTimeout=5
MessageTimeout=5
BatchStartTimeout=5
KillWait=2
CompleteWait=0
UnkillableStepTimeout=25
ResumeTimeout=30
SchedulerParameters=sched_interval=1,batch_sched_delay=0,sched_min_interval=0,bf_interval=1,bf_continue,bf_max_job_test=200
"""
"""Left out with `defaults`: stock Slurm waits tens of seconds at each of these."""
QUICK_CREDENTIAL_S = 5
"""A requeued job may not begin before its old credential has expired; stock 120 s."""


def slurm_conf(facts: LabFacts) -> str:
    """slurm.conf."""
    folder, wanted = facts.dir, facts.settings
    credential = "" if wanted.defaults else f",cred_expire={QUICK_CREDENTIAL_S}"
    lines = [
        f"# Written by `holdfast lab slurm up`: {wanted.nodes} nodes in {folder}",
        f"ClusterName={CLUSTER}",
        f"SlurmctldHost={facts.host}({facts.ctld_address})",
        f"SlurmctldPort={facts.port}",
        f"SlurmdPort={facts.port + NODE_PORT}",
        f"SlurmUser={facts.user}",
        f"SlurmdUser={facts.user}",
        "AuthType=auth/munge",
        "CredType=cred/munge",
        f"AuthInfo=socket={folder}/munge/socket{credential}",
        f"StateSaveLocation={folder}/state",
        f"SlurmdSpoolDir={folder}/spool/%n",
        f"SlurmctldPidFile={folder}/run/slurmctld.pid",
        f"SlurmdPidFile={folder}/run/slurmd-%n.pid",
        f"SlurmctldLogFile={folder}/log/slurmctld.log",
        f"SlurmdLogFile={folder}/log/slurmd-%n.log",
        "SlurmctldDebug=verbose",
        "SlurmdDebug=verbose",
        "LogTimeFormat=iso8601_ms",
        # No cgroups: they would be the machine's own, and two labs would meet in them.
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/none",
        "MpiDefault=none",
        f"PlugStackConfig={folder}/etc/plugstack.conf",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        # Nodes claim more processors and memory than their share of this machine.
        "SlurmdParameters=config_overrides",
        "GresTypes=gpu",
        f"MaxNodeCount={wanted.nodes + DYNAMIC_MAX}",
        f"TreeWidth={64 if wanted.nodes > 64 else 65533}",
        f"RebootProgram={folder}/bin/reboot",
        # 2 would undo a `state=down` within a second: the node registers again and counts as well.
        "ReturnToService=1",
    ]
    if not wanted.defaults:
        lines += [f"SlurmdTimeout={wanted.slurmd_timeout_s}", *QUICK.splitlines()]
    lines += _accounting(facts)
    lines += _nodes(facts)
    lines += wanted.extra_conf.splitlines()
    if not any(line.strip().lower().startswith("partitionname") for line in wanted.extra_conf.splitlines()):
        lines.append("PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO")
    return "\n".join(lines) + "\n"


def _accounting(facts: LabFacts) -> list[str]:
    if not facts.settings.dbd:
        return ["AccountingStorageType=accounting_storage/none"]
    return [
        "AccountingStorageType=accounting_storage/slurmdbd",
        "AccountingStorageHost=127.0.0.1",
        f"AccountingStoragePort={facts.port + DBD_PORT}",
        # Without it slurmctld looks for the machine's own munge.
        f"AccountingStoragePass={facts.dir}/munge/socket",
        "AccountingStorageTRES=gres/gpu",
        "AccountingStoreFlags=job_comment",
    ]


def _nodes(facts: LabFacts) -> list[str]:
    size = node_size(facts)
    if facts.settings.netns:
        return [
            f"NodeName={name} NodeAddr={facts.node_address(number)} {size} State=UNKNOWN"
            for number, name in enumerate(facts.names, 1)
        ]
    return [
        f"NodeName={name} NodeHostname={facts.host} NodeAddr=127.0.0.1 Port={facts.node_port(number)} {size}"
        " State=UNKNOWN"
        for number, name in enumerate(facts.names, 1)
    ]


def node_size(facts: LabFacts) -> str:
    """What a node offers, in the words of slurm.conf and of `slurmd -Z --conf`."""
    wanted = facts.settings
    gres = f" Gres=gpu:{wanted.gpus}" if wanted.gpus else ""
    return f"CPUs={wanted.cpus} RealMemory={wanted.memory_mib}{gres}"


def gpu_files(facts: LabFacts) -> list[str]:
    """Paths of the fake GPUs: own devices where root may make them, else terminals that every machine has."""
    folder = f"{facts.dir}/dev/nvidia" if facts.root else "/dev/tty"
    return [f"{folder}{index}" for index in range(facts.settings.gpus)]


def gres_conf(facts: LabFacts) -> str:
    """gres.conf."""
    files = gpu_files(facts)
    if not files:
        return ""
    stem = files[0][:-1]
    which = files[0] if len(files) == 1 else f"{stem}[0-{len(files) - 1}]"
    return f"Name=gpu File={which}\n"


def slurmdbd_conf(facts: LabFacts, password: str) -> str:
    """slurmdbd.conf; slurmdbd refuses to start unless only its user can read the file."""
    folder = facts.dir
    return f"""\
AuthType=auth/munge
AuthInfo={folder}/munge/socket
DbdHost={facts.host}
DbdAddr=127.0.0.1
DbdPort={facts.port + DBD_PORT}
SlurmUser={facts.user}
LogFile={folder}/log/slurmdbd.log
PidFile={folder}/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={facts.port + SQL_PORT}
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm_acct_db
"""


RESOLV_CONF = """\
# Nobody answers names beyond /etc/hosts in a lab's network. Refused at once is better than unheard: what is asked there
# (PyTorch asks for the name behind ::ffff:ADDRESS at every connection) would wait ten seconds each time.
nameserver 127.0.0.1
options timeout:1 attempts:1
"""


def hosts(facts: LabFacts, others: Iterable[tuple[str, str]] = ()) -> str:
    """/etc/hosts as the lab's own processes see it: a name that must be asked for elsewhere costs seconds.

    `others`: (address, name) of nodes that joined later.
    """
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    lines.append(f"{facts.ctld_address if facts.settings.netns else '127.0.0.1'} {facts.host} lab-controller")
    lines += [f"{facts.node_address(number)} {name}" for number, name in enumerate(facts.names, 1)]
    lines += [f"{where} {name}" for where, name in others]
    return "\n".join(lines) + "\n"
