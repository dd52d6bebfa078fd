"""`holdfast lab kubernetes ...`: a real Kubernetes control plane on this machine, to try things on and to break.

`up` builds its programs once, from the distribution's source package, and starts it in the background with nodes that
run pods as processes; `env` says how to use it; `node` and `daemon` break it and mend it; `down` ends everything.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType

from holdfast.cli import screen
from holdfast.cli.answer import Answer, answering, group
from holdfast.cli.json_forms import Form, fields_of, form
from holdfast.cli.lab_parts import Kind, daemons_table
from holdfast.cli.options import OptionSet
from holdfast.lab import kube_build, kube_lab
from holdfast.lab.kube_lab import KubeLab, KubeLabSettings

DaemonArgument = Annotated[str, typer.Argument(metavar="DAEMON", help="etcd, kube-apiserver and their like.")]

app = group("A real Kubernetes control plane; nodes run pods as processes.")
node_app = group("Break and mend nodes of the lab.")
daemon_app = group("Kill and start daemons of the control plane.")
app.add_typer(node_app, name="node")
app.add_typer(daemon_app, name="daemon")


@app.command()
@answering
def build() -> Answer:
    """Build the control plane's programs, or find them in the cache. Nothing is started."""
    found = kube_build.binaries(lambda text: screen.say(text, err=True))
    return Answer(
        lambda: form(kubernetes=found.version, dir=str(found.folder)),
        lambda: [f"Kubernetes {found.version}: {found.folder}"],
    )


class UpOptions(OptionSet, frozen=True):
    """What `up` is asked for, as `KubeLabSettings` has it."""

    gpus: Annotated[int, typer.Option(metavar="K", help="Fake GPUs of each node.")] = 8
    agents: Annotated[bool, typer.Option("--agents/--no-agents", help="Run `holdfast agent` on every node.")] = True
    port: Annotated[int, typer.Option(metavar="BASE", help="First of five ports; 0: a free range.")] = 0
    boot_s: Annotated[float, typer.Option(min=0.0, help="Seconds that a reboot takes.")] = 1.0


def up(
    nodes: Annotated[int, typer.Argument(metavar="[N]", help="Nodes.", min=0)] = 4,
    *,
    lab_dir: Path | None = None,
    asked: UpOptions,
) -> Answer:
    """Start a lab in the background and wait for its nodes. One that runs already is taken up."""
    settings, folder = asked.fill(KubeLabSettings, nodes=nodes), KIND.folder(lab_dir)
    lab = KubeLab.start(settings, folder, follow=False, say=lambda text: screen.say(text, err=True))
    return KIND.up(lab, f"{nodes} nodes at {lab.facts.server}", lab_dir, folder, "kubectl get nodes")


def _shown(found: Form) -> list[RenderableType]:
    nodes = screen.table("node", "state", rows=found["nodes"].items(), keep=("node",))
    return [f"{found['dir']}: Kubernetes {found['kubernetes']} at {found['server']}", daemons_table(found), nodes]


def _form(lab: KubeLab) -> Form:
    return form(
        dir=str(lab.folder),
        kubernetes=lab.facts.version,
        **fields_of(lab.facts, "server kubeconfig"),
        daemons=lab.status(),
        nodes=lab.node_states(),
    )


def _is_broken(found: Form) -> bool:
    off = any(state.startswith(("off", "booting")) for state in found["nodes"].values())
    return off or not all(daemon["pid"] for daemon in found["daemons"].values())


def _kmsg(lab: KubeLab, node: str, line: str) -> Path:
    asyncio.run(lab.nodes.do("kmsg", node, text=line))
    return lab.node_dir(node) / "kmsg"


def _verb(verb: str, word: str) -> Callable[[KubeLab, str], str]:
    """What does this to a node (one of the deeds of `KubeLab.nodes`), and says what the node is then."""

    def run(lab: KubeLab, node: str) -> str:
        asyncio.run(lab.nodes.do(verb, node))
        return f"{node} {word}"

    return run


KIND = Kind(
    name="kubernetes",
    called="Kubernetes lab",
    shows="the control plane's daemons and the nodes",
    attach=KubeLab.attach,
    end=kube_lab.down,
    form=_form,
    shown=_shown,
    is_broken=_is_broken,
    env=lambda lab: {"KUBECONFIG": str(lab.kubeconfig)},
    nodes={
        "off": ("Power failure: everything on the node dies at once.", _verb("power_off", "is off")),
        "on": ("Boot a node that is off.", _verb("power_on", "is on")),
        "reboot": (
            "Boot a node anew and wait until it is up. Serves as `reboot_program` of a lab's holdfast.toml.",
            _verb("reboot", "is up again"),
        ),
        "replace": (
            "Put another machine in a node's place, under its name. Serves as `replace_program`.",
            _verb("replace", "is another machine"),
        ),
        "cut": ("Cut the node's network: its kubelet and its agent fall silent.", _verb("cut", "is cut off")),
        "heal": ("Undo `cut`.", _verb("heal", "is on the network")),
    },
    kmsg=_kmsg,
)


def kill(daemon: DaemonArgument, *, lab_dir: Path | None = None) -> str:
    """SIGKILL a daemon."""
    KIND.at(lab_dir).stop(daemon, sig=signal.SIGKILL)
    return f"{daemon} is down"


def start(daemon: DaemonArgument, *, lab_dir: Path | None = None) -> str:
    """Start a daemon and wait until the API server answers."""
    KIND.at(lab_dir).run(daemon)
    return f"{daemon} is up"


KIND.answer(app, "up", up)
KIND.add_common(app)
KIND.add_nodes(node_app)
KIND.add_kmsg(node_app)
KIND.act(daemon_app, "kill", kill)
KIND.act(daemon_app, "start", start)
