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

from holdfast.cli import screen
from holdfast.cli.lab_parts import NodeArgument, group, lab_folder
from holdfast.cli.options import JsonOption
from holdfast.errors import EXIT_FAILED
from holdfast.lab import kube_build, kube_lab
from holdfast.lab.kube_lab import KubeLab, KubeLabSettings

VERSION = 1
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
def build(*, json: JsonOption = False) -> None:
    """Build the control plane's programs, or find them in the cache. Nothing is started."""
    found = kube_build.binaries(lambda text: screen.say(text, err=True))
    if json:
        screen.say_json({"version": VERSION, "kubernetes": found.version, "dir": str(found.folder)})
    else:
        screen.say(f"Kubernetes {found.version}: {found.folder}")


@app.command()
def up(
    nodes: Annotated[int, typer.Argument(metavar="[N]", help="Nodes.", min=0)] = DEFAULT_NODES,
    *,
    lab_dir: LabDirOption = None,
    gpus: Annotated[int, typer.Option("--gpus", metavar="K", help="Fake GPUs of each node.")] = 8,
    agents: Annotated[bool, typer.Option("--agents/--no-agents", help="Run `holdfast agent` on every node.")] = True,
    port: Annotated[int, typer.Option("--port", metavar="BASE", help="First of five ports; 0: a free range.")] = 0,
    boot_s: Annotated[float, typer.Option("--boot-s", min=0.0, help="Seconds that a reboot takes.")] = 1.0,
    json: JsonOption = False,
) -> None:
    """Start a lab in the background and wait for its nodes. One that runs already is taken up."""
    settings = KubeLabSettings(nodes=nodes, gpus=gpus, agents=agents, port=port, boot_s=boot_s)
    folder = _folder(lab_dir)
    lab = KubeLab.start(settings, folder, follow=False, say=lambda text: screen.say(text, err=True))
    if json:
        screen.say_json(_form(lab))
        return
    screen.say(f"Kubernetes lab up: {nodes} nodes at {lab.facts.server}; {folder}")
    where = f" --dir {shlex.quote(str(folder))}" if lab_dir is not None else ""
    screen.say(f'  eval "$(holdfast lab kubernetes env{where})"; kubectl get nodes')
    screen.say(f"  holdfast lab kubernetes down{where}")


@app.command()
def down(*, lab_dir: LabDirOption = None, json: JsonOption = False) -> None:
    """End a lab and every process in it. One that was killed half-way is cleared away, too. Its folder stays."""
    folder = _folder(lab_dir)
    ran = kube_lab.down(folder)
    if json:
        screen.say_json({"version": VERSION, "dir": str(folder), "ran": ran})
    else:
        screen.say(f"Kubernetes lab in {folder} is down" if ran else f"no Kubernetes lab ran in {folder}")


@app.command()
def status(*, lab_dir: LabDirOption = None, json: JsonOption = False) -> None:
    """Show the control plane's daemons and the nodes. Exit code 1 when a daemon or a node is not up."""
    form = _form(KubeLab.attach(_folder(lab_dir)))
    if json:
        screen.say_json(form)
    else:
        screen.say(f"{form['dir']}: Kubernetes {form['kubernetes']} at {form['server']}")
        daemons = screen.table("daemon", "pid", keep=("daemon",))
        for name, daemon in form["daemons"].items():
            daemons.add_row(name, str(daemon["pid"]) if daemon["pid"] else f"ended with {daemon['code']}")
        nodes = screen.table("node", "state", keep=("node",))
        for name, state in form["nodes"].items():
            nodes.add_row(name, state)
        screen.console().print(daemons)
        screen.console().print(nodes)
    dead = [name for name, daemon in form["daemons"].items() if not daemon["pid"]]
    dead += [name for name, state in form["nodes"].items() if state.startswith(("off", "booting"))]
    if dead:
        raise typer.Exit(EXIT_FAILED)


@app.command()
def env(*, lab_dir: LabDirOption = None, json: JsonOption = False) -> None:
    """Print what a shell needs to use the lab. Use: eval "$(holdfast lab kubernetes env)"."""
    found = {"KUBECONFIG": str(KubeLab.attach(_folder(lab_dir)).kubeconfig)}
    if json:
        screen.say_json({"version": VERSION, "env": found})
        return
    for name, value in found.items():
        screen.say(f"export {name}={shlex.quote(value)}")


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


def _break(lab_dir: Path | None, node: str, word: str, verb: str) -> None:
    deed: Coroutine[Any, Any, Any] = getattr(KubeLab.attach(_folder(lab_dir)).nodes, verb)(node)
    asyncio.run(deed)
    screen.say(f"{node} {word}")


@node_app.command("off")
def node_off(node: NodeArgument, *, lab_dir: LabDirOption = None) -> None:
    """Power failure: everything on the node dies at once."""
    _break(lab_dir, node, "is off", "power_off")


@node_app.command("on")
def node_on(node: NodeArgument, *, lab_dir: LabDirOption = None) -> None:
    """Boot a node that is off."""
    _break(lab_dir, node, "is on", "power_on")


@node_app.command("reboot")
def node_reboot(node: NodeArgument, *, lab_dir: LabDirOption = None) -> None:
    """Boot a node anew and wait until it is up. Serves as `reboot_program` of a lab's holdfast.toml."""
    _break(lab_dir, node, "is up again", "reboot")


@node_app.command("replace")
def node_replace(node: NodeArgument, *, lab_dir: LabDirOption = None) -> None:
    """Put another machine in a node's place, under its name. Serves as `replace_program`."""
    _break(lab_dir, node, "is another machine", "replace")


@node_app.command("cut")
def node_cut(node: NodeArgument, *, lab_dir: LabDirOption = None) -> None:
    """Cut the node's network: its kubelet and its agent fall silent."""
    _break(lab_dir, node, "is cut off", "cut")


@node_app.command("heal")
def node_heal(node: NodeArgument, *, lab_dir: LabDirOption = None) -> None:
    """Undo `cut`."""
    _break(lab_dir, node, "is on the network", "heal")


@node_app.command("kmsg")
def node_kmsg(
    node: NodeArgument,
    line: Annotated[str, typer.Argument(metavar="LINE", help='"NVRM: Xid (PCI:0000:b9:00): 79, ..."')],
    *,
    lab_dir: LabDirOption = None,
) -> None:
    """Append a line to the node's kernel log, which its agent reads."""
    lab = KubeLab.attach(_folder(lab_dir))
    asyncio.run(lab.nodes.kmsg(node, line))
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
