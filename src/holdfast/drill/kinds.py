"""The kinds of faults: what each does, how it is injected, where it works, and which parameters it takes.

Read by `scenario` (to refuse a wrong key), `faults` (to inject), the command line and the docs page. Pure; no time
passes.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from holdfast.failpoint import command


class Reach(StrEnum):
    """From where a fault is injected."""

    NOTHING = "nothing"
    """Nothing is broken."""
    PROCESS = "process"
    """Inside the training process, by a command file in the job's drill folder."""
    LAUNCHER = "launcher"
    """By the launcher, to one of its ranks, by the same command file."""
    NODE = "node"
    """To a node, by the orchestrator's breakers."""
    SCHEDULER = "scheduler"
    """To the scheduler, or to what it stands on, usually while it has something to recover."""
    FILES = "files"
    """To the job's checkpoints, by whoever can write them; a rank is killed afterwards so that one must be loaded."""


SLURM = "lab"
"""The cluster's name in a Slurm lab."""


class Kind(Struct, frozen=True, kw_only=True):
    """One kind of fault."""

    name: str
    reach: Reach
    about: str
    target: str = "rank"
    """What it hits: `rank`, `node`, or `none`."""
    how: str = ""
    needs: str = ""
    """A workload that the fault needs (`gpt`: a live torch module); empty: any."""
    params: dict[str, command.Param] = {}
    undo: str = ""
    """What an abort undoes."""

    def lacking(self, cluster: str) -> str:
        """Why it cannot be had on a cluster of this kind; empty when it can."""
        return f"only on {SLURM}" if self.reach is Reach.SCHEDULER and cluster != SLURM else ""


def _process(name: str, about: str, how: str, *, needs: str = "", undo: str = "") -> Kind:
    params = dict(command.KINDS[name])
    return Kind(name=name, reach=Reach.PROCESS, about=about, how=how, needs=needs, params=params, undo=undo)


def _launcher(name: str, about: str, how: str, undo: str = "") -> Kind:
    params = dict(command.LAUNCHER_KINDS[name])
    return Kind(name=name, reach=Reach.LAUNCHER, about=about, how=how, params=params, undo=undo)


def _node(name: str, about: str, how: str, undo: str = "", **params: command.Param) -> Kind:
    return Kind(name=name, reach=Reach.NODE, about=about, target="node", how=how, params=params, undo=undo)


def _slurm(name: str, about: str, how: str, undo: str, **params: command.Param) -> Kind:
    return Kind(
        name=name,
        reach=Reach.SCHEDULER,
        about=about,
        target="node",
        how=how,
        params=params,
        undo=undo,
    )


_FOR_S = command.Param((int, float), 0.0, least=0)
_GOES_ON = "the rank goes on"

_ALL = (
    Kind(
        name="good",
        reach=Reach.NOTHING,
        about="no fault: Holdfast must leave a healthy job alone",
        target="none",
        how="nothing is done",
    ),
    _process("crash_segfault", "the rank dies of signal 11", "reads address 0 in the training process"),
    _process("exception", "the training code raises", "raises RuntimeError in the training thread"),
    _launcher("kill9", "the rank is killed from outside", "SIGKILL to the rank"),
    _launcher("kill_signal", "the rank gets a signal of your choice", "the signal to the rank"),
    _launcher("sigstop", "the rank is stopped: alive, silent, no step", "SIGSTOP to the rank", "SIGCONT"),
    _process("gil_lock", "a C call holds the interpreter lock", "no Python thread of the rank runs", undo=_GOES_ON),
    _process(
        "hang_allreduce",
        "one rank takes no part in the all-reduce",
        "the training thread waits at the begin of a step while the others enter their collective",
        undo=_GOES_ON,
    ),
    _process(
        "hang_p2p",
        "a receive waits for a message that never comes",
        "a real `recv` from a peer that does not send (without torch: as hang_allreduce)",
        undo="the peer sends",
    ),
    _process(
        "hang_user_buffer",
        "user code stalls with no collective pending, so that no watchdog ever fires",
        "the training thread waits, or spins with `busy = true`",
        undo=_GOES_ON,
    ),
    _process("straggler", "one rank is slower than its peers", "`extra_s` seconds more per step", undo=_GOES_ON),
    _process(
        "straggler_then_hang",
        "a rank grows slow, then stops",
        "as straggler for `steps` steps, then as hang_allreduce",
        undo=_GOES_ON,
    ),
    _node(
        "xid",
        "the GPU driver reports an Xid",
        "an NVRM line in the node's kernel log",
        xid=command.Param((int,), required=True, least=1),
        line=command.Param((str,), ""),
        gpu=command.Param((str,), "0000:b9:00"),
    ),
    _node("node_loss", "the node is gone from one moment to the next", "power off", "power on, unless it is replaced"),
    _node(
        "network_cut",
        "the node's network is cut",
        "no message of Holdfast passes; healed after `for_s` seconds",
        "heal",
        for_s=_FOR_S,
    ),
    _node(
        "disk_full",
        "the node's scratch file system is full",
        "filled; freed after `for_s` seconds",
        "free",
        for_s=_FOR_S,
    ),
    Kind(
        name="corrupt_checkpoint",
        reach=Reach.FILES,
        about="the newest checkpoint is damaged, and a restart needs one",
        how="flips `bits` bits in the newest published checkpoint, then SIGKILL to the rank",
        params={"bits": command.Param((int,), 64, least=1), "dir": command.Param((str,), "")},
    ),
    _slurm(
        "slurmd_killed",
        "slurmd of a node dies, and its job does not",
        "SIGKILL to slurmd alone; started again after `for_s` seconds",
        "started",
        for_s=_FOR_S,
    ),
    _slurm("node_reboot", "a node reboots in the middle of its work", "power off, and on again", "none is needed"),
    _slurm(
        "slurmctld_restarted",
        "slurmctld is away while a job has to be recovered",
        "SIGKILL to slurmctld, then an Xid 74 on the node; slurmctld is started again after `for_s` seconds",
        "started",
        for_s=_FOR_S,
    ),
    _slurm(
        "slurmdbd_away",
        "accounting is away while a job has to be recovered",
        "slurmdbd is ended, then an Xid 74 on the node; started again when the drill is over",
        "started",
    ),
    _slurm(
        "shared_full",
        "the file system that all nodes share is full",
        "filled; freed after `for_s` seconds",
        "freed",
        for_s=_FOR_S,
    ),
    _process("nan_loss", "the loss becomes NaN", "a parameter of the live model is filled with NaN", needs="gpt"),
    _process("out_of_memory", "an allocation fails", "the allocator's own error in the training thread"),
    _process("log_line", "a line that looks like a fault and is none", "printed by the rank"),
)

KINDS: dict[str, Kind] = {kind.name: kind for kind in _ALL}
"""Every kind by name."""
