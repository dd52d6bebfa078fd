"""`holdfast lab ...`: a real Slurm of many nodes on this machine, to try things on and to break.

`lab kubernetes` is in `lab_kubernetes.py`.

`up` starts it in the background from the distribution's packages, `env` says how to use it, `node`, `ctld` and `dbd`
break it and mend it, `down` ends everything. No systemd and no containers; `--netns` needs root, the rest does not.
"""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from holdfast.cli import lab_kubernetes, screen
from holdfast.cli.answer import Answer, answering, group
from holdfast.cli.lab_parts import VERSION, NodeArgument, ended, environment, lab_folder
from holdfast.errors import EXIT_FAILED, LinkError, UsageError
from holdfast.lab import slurm_lab
from holdfast.lab.settings import LabSettings
from holdfast.lab.slurm_lab import SlurmLab

DEFAULT_NODES = 8

LabDirOption = Annotated[
    Path | None,
    typer.Option("--dir", metavar="DIR", help="The lab's folder. Default: ~/.cache/holdfast/slurm-lab."),
]


app = group("Real schedulers on this machine, to try things on and to break.")
slurm = group("A real Slurm of many nodes on this machine.")
node_app = group("Break, mend, add and remove nodes of the lab.")
ctld_app = group("Stop, kill and start slurmctld.")
dbd_app = group("Stop, kill and start slurmdbd.")
app.add_typer(slurm, name="slurm")
app.add_typer(lab_kubernetes.app, name="kubernetes")
slurm.add_typer(node_app, name="node")
slurm.add_typer(ctld_app, name="ctld")
slurm.add_typer(dbd_app, name="dbd")


def _folder(given: Path | None) -> Path:
    return lab_folder(given, "slurm-lab")


@slurm.command()
@answering
def up(
    nodes: Annotated[int, typer.Argument(metavar="[N]", help="Nodes.")] = DEFAULT_NODES,
    *,
    lab_dir: LabDirOption = None,
    netns: Annotated[
        bool, typer.Option("--netns", help="Own network, host name and process tree for each node (root).")
    ] = False,
    dbd: Annotated[bool, typer.Option("--dbd", help="Accounting: slurmdbd and a MariaDB of its own.")] = False,
    rest: Annotated[bool, typer.Option("--rest", help="slurmrestd on a Unix socket.")] = False,
    defaults: Annotated[bool, typer.Option("--defaults", help="Keep Slurm's own time-outs, which are long.")] = False,
    gpus: Annotated[int, typer.Option("--gpus", metavar="K", help="Fake GPUs of each node.")] = 8,
    agents: Annotated[bool, typer.Option("--agents", help="Run `holdfast agent` on every node.")] = False,
    devices: Annotated[
        bool, typer.Option("--emulated-devices", help="With --agents: emulated GPUs and dcgmi on every node.")
    ] = False,
    port: Annotated[int, typer.Option("--port", metavar="BASE", help="First port; 0: a free range.")] = 0,
    boot_s: Annotated[float, typer.Option("--boot-s", min=0.0, help="Seconds that a reboot takes.")] = 2.0,
    conf: Annotated[Path | None, typer.Option("--conf", metavar="FILE", help="Lines to append to slurm.conf.")] = None,
) -> Answer:
    """Start a lab in the background and wait for its nodes. One that runs already is mended."""
    if devices and not agents:
        raise UsageError("--emulated-devices needs --agents: a node's agent makes them")
    settings = LabSettings(
        nodes=nodes,
        netns=netns,
        dbd=dbd,
        rest=rest,
        defaults=defaults,
        gpus=gpus,
        agents=agents,
        devices=devices,
        port=port,
        boot_s=boot_s,
        extra_conf=_read(conf),
    )
    lab = SlurmLab.start(settings, _folder(lab_dir), follow=False)
    words = [f"{nodes} nodes", *(["a network each"] if netns else []), *(["accounting"] if dbd else [])]
    where = f" --dir {shlex.quote(str(lab.folder))}" if lab_dir is not None else ""
    lines = [
        f"Slurm lab up: {', '.join(words)}; {lab.folder}",
        f'  eval "$(holdfast lab slurm env{where})"; sinfo',
        f"  holdfast lab slurm down{where}",
    ]
    return Answer(lambda: _form(lab), lambda: lines)


def _read(conf: Path | None) -> str:
    if conf is None:
        return ""
    try:
        return conf.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--conf {conf}: {error.strerror}") from error


@slurm.command()
@answering
def down(*, lab_dir: LabDirOption = None) -> Answer:
    """End a lab and every process in it. One that was killed half-way is cleared away, too. Its folder stays."""
    folder = _folder(lab_dir)
    return ended("Slurm lab", folder, ran=slurm_lab.down(folder))


@slurm.command()
@answering
def status(*, lab_dir: LabDirOption = None) -> Answer:
    """Show the lab's daemons and nodes. Exit code 1 when a daemon or a node is not up."""
    form = _form(SlurmLab.attach(_folder(lab_dir)))
    broken = [name for name, daemon in form["daemons"].items() if not daemon["pid"]]
    broken += [name for name, node in form["nodes"].items() if node["power"] != "on"]
    return Answer(lambda: form, lambda: _shown(form), EXIT_FAILED if broken else 0)


@slurm.command()
@answering
def env(*, lab_dir: LabDirOption = None) -> Answer:
    """Print what a shell needs to use the lab. Use: eval "$(holdfast lab slurm env)"."""
    return environment({"SLURM_CONF": str(SlurmLab.attach(_folder(lab_dir)).facts.conf)})


def _form(lab: SlurmLab) -> dict[str, Any]:
    said = lab.status()
    try:
        states: dict[str, str] = lab.node_states()
    except LinkError:
        states = {}  # slurmctld is down: the rest is still worth seeing
    nodes = {name: node | {"slurm_state": states.get(name, "")} for name, node in said["nodes"].items()}
    settings = lab.facts.settings
    return {
        "version": VERSION,
        "dir": lab.facts.dir,
        "pid": said["pid"],
        "slurm_conf": str(lab.facts.conf),
        "port": lab.facts.port,
        "netns": settings.netns,
        "defaults": settings.defaults,
        "daemons": said["daemons"],
        "nodes": nodes,
    }


def _shown(form: dict[str, Any]) -> list[RenderableType]:
    head = f"{form['dir']}: ports from {form['port']}{', a network per node' if form['netns'] else ''}"
    daemons = screen.table("daemon", "pid", keep=("daemon",))
    for name, daemon in form["daemons"].items():
        ended = Text(f"ended with {daemon['code']}", style="red")
        daemons.add_row(name, str(daemon["pid"]) if daemon["pid"] else ended)
    nodes = screen.table("node", "power", "Slurm", "trouble", "machine", "address", keep=("node",))
    for name, node in form["nodes"].items():
        service = node["services"].get("slurmd", {})
        trouble = [word for word in ("hung", "cut") if node[word]]
        trouble += ["no slurmd"] if node["power"] == "on" and not service.get("running") else []
        style = "green" if node["power"] == "on" else "red"
        power = Text(node["power"], style=style)
        nodes.add_row(name, power, node["slurm_state"], ", ".join(trouble), node["instance_id"], node["address"])
    return [head, daemons, nodes]


# --- nodes ---


def _verb(verb: str, word: str) -> Callable[[SlurmLab, str], str]:
    def run(lab: SlurmLab, node: str) -> str:
        lab.node(verb, node)
        return f"{node} {word}"

    return run


def _kill(lab: SlurmLab, node: str) -> str:
    ran = lab.node("kill", node, sig=int(signal.SIGKILL))
    return f"slurmd of {node} is killed" if ran else f"no slurmd ran on {node}"


def _replace(lab: SlurmLab, node: str) -> str:
    return f"{node} is another machine now, {lab.node('replace', node)}, and boots"


NODE_COMMANDS: dict[str, tuple[str, Callable[[SlurmLab, str], str]]] = {
    "start": ("Switch a node on, or start its slurmd when only that is missing.", _verb("start", "is on")),
    "kill": ("SIGKILL slurmd alone; jobs on the node go on.", _kill),
    "crash": ("Power failure: everything on the node dies at once.", _verb("crash", "is off")),
    "hang": ("Stop every process of the node: there, but silent.", _verb("hang", "hangs")),
    "unhang": ("Undo `hang`.", _verb("unhang", "goes on")),
    "cut": (
        "Cut the node's network: packets vanish, nobody is told. Needs a lab with --netns.",
        _verb("cut", "is cut off"),
    ),
    "heal": ("Undo `cut`.", _verb("heal", "is on the network")),
    "reboot": (
        "Power the node off and on again. `scontrol reboot` asks it to do so by itself, when it is idle.",
        _verb("reboot", "boots"),
    ),
    "replace": ("Put another machine in its place, under the same name.", _replace),
}
"""Command -> its help, and what does it and says what came of it."""


def _node_command(name: str) -> None:
    about, act = NODE_COMMANDS[name]

    def command(node: NodeArgument, *, lab_dir: LabDirOption = None) -> None:
        screen.say(act(SlurmLab.attach(_folder(lab_dir)), node))

    command.__doc__ = about
    node_app.command(name)(command)


for _name in NODE_COMMANDS:
    _node_command(_name)


@node_app.command("add")
def node_add(
    node: NodeArgument,
    *,
    conf: Annotated[
        str, typer.Option("--conf", metavar="WORDS", help='What it offers, such as "CPUs=4 Feature=spare".')
    ] = "",
    lab_dir: LabDirOption = None,
) -> None:
    """Have a machine join that slurm.conf does not name (slurmd -Z). Needs a lab with --netns."""
    lab = SlurmLab.attach(_folder(lab_dir))
    screen.say(f"{node} joins with address {lab.add(node, conf)}")


@node_app.command("remove")
def node_remove(node: NodeArgument, *, lab_dir: LabDirOption = None) -> None:
    """Take a machine that joined away again."""
    SlurmLab.attach(_folder(lab_dir)).remove(node)
    screen.say(f"{node} is gone")


@node_app.command("kmsg")
def node_kmsg(
    node: NodeArgument,
    line: Annotated[str, typer.Argument(metavar="LINE", help='"NVRM: Xid (PCI:0000:b9:00): 79, ..."')],
    *,
    lab_dir: LabDirOption = None,
) -> None:
    """Append a line to the node's kernel log, which its agent reads."""
    lab = SlurmLab.attach(_folder(lab_dir))
    lab.kmsg(node, line)
    screen.say(f"written to {lab.node_dir(node) / 'kmsg'}")


# --- daemons ---


class Deed(StrEnum):
    """What can be done to a daemon."""

    START = "start"
    STOP = "stop"
    KILL = "kill"


def _daemon_commands(group: typer.Typer, name: str, deeds: Callable[[SlurmLab, Deed], None]) -> None:
    def make(deed: Deed, about: str) -> None:
        def command(*, lab_dir: LabDirOption = None) -> None:
            deeds(SlurmLab.attach(_folder(lab_dir)), deed)
            screen.say(f"{name} {'is up' if deed is Deed.START else 'is down'}")

        command.__doc__ = about
        group.command(deed.value)(command)

    make(Deed.START, f"Start {name} and wait until it answers.")
    make(Deed.STOP, f"End {name} in order and wait until it is gone.")
    make(Deed.KILL, f"SIGKILL {name}.")


def _ctld(lab: SlurmLab, deed: Deed) -> None:
    if deed is Deed.START:
        lab.daemons.start_ctld()
    else:
        lab.daemons.stop("slurmctld", sig=signal.SIGKILL if deed is Deed.KILL else signal.SIGTERM)


def _dbd(lab: SlurmLab, deed: Deed) -> None:
    if not lab.facts.settings.dbd:
        raise UsageError("this lab has no slurmdbd: `holdfast lab slurm up --dbd` starts one with it")
    if deed is Deed.START:
        lab.daemons.start_dbd()
    else:
        lab.daemons.stop("slurmdbd", sig=signal.SIGKILL if deed is Deed.KILL else signal.SIGTERM)


_daemon_commands(ctld_app, "slurmctld", _ctld)
_daemon_commands(dbd_app, "slurmdbd", _dbd)
