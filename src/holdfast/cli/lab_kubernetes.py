"""`holdfast lab kubernetes ...`: a real Kubernetes control plane on this machine, to try things on and to break.

`up` builds its programs once, from the distribution's source package, and starts it in the background with nodes that
run pods as processes; `env` says how to use it; `node` and `daemon` break it and mend it; `down` ends everything.
"""

from __future__ import annotations

import asyncio
import shlex
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from holdfast.cli import screen
from holdfast.cli.answer import Answer, answering, group
from holdfast.cli.lab_parts import VERSION, NodeArgument, ended, environment, lab_folder
from holdfast.errors import EXIT_FAILED
from holdfast.lab import kube_build, kube_lab
from holdfast.lab.kube_lab import KubeLab, KubeLabSettings

DEFAULT_NODES = 4

LabDirOption = Annotated[
    Path | None,
    typer.Option("--dir", metavar="DIR", help="The lab's folder. Default: ~/.cache/holdfast/kubernetes-lab."),
]
DaemonArgument = Annotated[str, typer.Argument(metavar="DAEMON", help="etcd, kube-apiserver and their like.")]


app = group("A real Kubernetes control plane; nodes run pods as processes.")
node_app = group("Break and mend nodes of the lab.")
daemon_app = group("Kill and start daemons of the control plane.")
app.add_typer(node_app, name="node")
app.add_typer(daemon_app, name="daemon")


def _folder(given: Path | None) -> Path:
    return lab_folder(given, "kubernetes-lab")


@app.command()
@answering
def build() -> Answer:
    """Build the control plane's programs, or find them in the cache. Nothing is started."""
    found = kube_build.binaries(lambda text: screen.say(text, err=True))
    return Answer(
        lambda: {"version": VERSION, "kubernetes": found.version, "dir": str(found.folder)},
        lambda: [f"Kubernetes {found.version}: {found.folder}"],
    )


@app.command()
@answering
def up(
    nodes: Annotated[int, typer.Argument(metavar="[N]", help="Nodes.", min=0)] = DEFAULT_NODES,
    *,
    lab_dir: LabDirOption = None,
    gpus: Annotated[int, typer.Option("--gpus", metavar="K", help="Fake GPUs of each node.")] = 8,
    agents: Annotated[bool, typer.Option("--agents/--no-agents", help="Run `holdfast agent` on every node.")] = True,
    port: Annotated[int, typer.Option("--port", metavar="BASE", help="First of five ports; 0: a free range.")] = 0,
    boot_s: Annotated[float, typer.Option("--boot-s", min=0.0, help="Seconds that a reboot takes.")] = 1.0,
) -> Answer:
    """Start a lab in the background and wait for its nodes. One that runs already is taken up."""
    settings = KubeLabSettings(nodes=nodes, gpus=gpus, agents=agents, port=port, boot_s=boot_s)
    folder = _folder(lab_dir)
    lab = KubeLab.start(settings, folder, follow=False, say=lambda text: screen.say(text, err=True))
    where = f" --dir {shlex.quote(str(folder))}" if lab_dir is not None else ""
    lines = [
        f"Kubernetes lab up: {nodes} nodes at {lab.facts.server}; {folder}",
        f'  eval "$(holdfast lab kubernetes env{where})"; kubectl get nodes',
        f"  holdfast lab kubernetes down{where}",
    ]
    return Answer(lambda: _form(lab), lambda: lines)


@app.command()
@answering
def down(*, lab_dir: LabDirOption = None) -> Answer:
    """End a lab and every process in it. One that was killed half-way is cleared away, too. Its folder stays."""
    folder = _folder(lab_dir)
    return ended("Kubernetes lab", folder, ran=kube_lab.down(folder))


@app.command()
@answering
def status(*, lab_dir: LabDirOption = None) -> Answer:
    """Show the control plane's daemons and the nodes. Exit code 1 when a daemon or a node is not up."""
    form = _form(KubeLab.attach(_folder(lab_dir)))
    dead = [name for name, daemon in form["daemons"].items() if not daemon["pid"]]
    dead += [name for name, state in form["nodes"].items() if state.startswith(("off", "booting"))]
    return Answer(lambda: form, lambda: _shown(form), EXIT_FAILED if dead else 0)


def _shown(form: dict[str, Any]) -> list[RenderableType]:
    daemons = screen.table("daemon", "pid", keep=("daemon",))
    for name, daemon in form["daemons"].items():
        daemons.add_row(name, str(daemon["pid"]) if daemon["pid"] else f"ended with {daemon['code']}")
    nodes = screen.table("node", "state", keep=("node",))
    for name, state in form["nodes"].items():
        nodes.add_row(name, state)
    return [f"{form['dir']}: Kubernetes {form['kubernetes']} at {form['server']}", daemons, nodes]


@app.command()
@answering
def env(*, lab_dir: LabDirOption = None) -> Answer:
    """Print what a shell needs to use the lab. Use: eval "$(holdfast lab kubernetes env)"."""
    return environment({"KUBECONFIG": str(KubeLab.attach(_folder(lab_dir)).kubeconfig)})


def _form(lab: KubeLab) -> dict[str, Any]:
    return {
        "version": VERSION,
        "dir": str(lab.folder),
        "kubernetes": lab.facts.version,
        "server": lab.facts.server,
        "kubeconfig": lab.facts.kubeconfig,
        "daemons": lab.status(),
        "nodes": lab.node_states(),
    }


# --- nodes ---


NODE_COMMANDS = {
    "off": ("Power failure: everything on the node dies at once.", "power_off", "is off"),
    "on": ("Boot a node that is off.", "power_on", "is on"),
    "reboot": (
        "Boot a node anew and wait until it is up. Serves as `reboot_program` of a lab's holdfast.toml.",
        "reboot",
        "is up again",
    ),
    "replace": (
        "Put another machine in a node's place, under its name. Serves as `replace_program`.",
        "replace",
        "is another machine",
    ),
    "cut": ("Cut the node's network: its kubelet and its agent fall silent.", "cut", "is cut off"),
    "heal": ("Undo `cut`.", "heal", "is on the network"),
}
"""Command -> its help, what of `KubeLab.nodes` does it, and what the node is then."""


def _node_command(name: str) -> None:
    about, verb, word = NODE_COMMANDS[name]

    def command(node: NodeArgument, *, lab_dir: LabDirOption = None) -> None:
        work: Coroutine[Any, Any, Any] = getattr(KubeLab.attach(_folder(lab_dir)).nodes, verb)(node)
        asyncio.run(work)
        screen.say(f"{node} {word}")

    command.__doc__ = about
    node_app.command(name)(command)


for _name in NODE_COMMANDS:
    _node_command(_name)


@node_app.command("kmsg")
def node_kmsg(
    node: NodeArgument,
    line: Annotated[str, typer.Argument(metavar="LINE", help='"NVRM: Xid (PCI:0000:b9:00): 79, ..."')],
    *,
    lab_dir: LabDirOption = None,
) -> None:
    """Append a line to the node's kernel log, which its agent reads."""
    lab = KubeLab.attach(_folder(lab_dir))
    asyncio.run(lab.nodes.do("kmsg", node, text=line))
    screen.say(f"written to {lab.node_dir(node) / 'kmsg'}")


# --- daemons ---


@daemon_app.command("kill")
def daemon_kill(daemon: DaemonArgument, *, lab_dir: LabDirOption = None) -> None:
    """SIGKILL a daemon."""
    KubeLab.attach(_folder(lab_dir)).stop(daemon, sig=signal.SIGKILL)
    screen.say(f"{daemon} is down")


@daemon_app.command("start")
def daemon_start(daemon: DaemonArgument, *, lab_dir: LabDirOption = None) -> None:
    """Start a daemon and wait until the API server answers."""
    KubeLab.attach(_folder(lab_dir)).run(daemon)
    screen.say(f"{daemon} is up")
