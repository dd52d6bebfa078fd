"""`holdfast lab ...`: a real Slurm of many nodes on this machine, to try things on and to break.

`up` starts it in the background from the distribution's packages, `env` says how to use it, `node`, `ctld` and `dbd`
break it and mend it, `down` ends everything. No systemd and no containers; `--netns` needs root, the rest does not.
What both labs have is in `lab_parts`, `lab kubernetes` in `lab_kubernetes`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from holdfast.cli import lab_kubernetes, screen
from holdfast.cli.answer import Answer, answering, group
from holdfast.cli.json_forms import Form, fields_of, form
from holdfast.cli.lab_parts import Kind, NodeArgument, daemons_table
from holdfast.cli.options import OptionSet
from holdfast.errors import LinkError, UsageError
from holdfast.lab import slurm_build, slurm_lab
from holdfast.lab.packages import search_path
from holdfast.lab.settings import LabSettings
from holdfast.lab.slurm_lab import SlurmLab
from holdfast.os.tls import PLAIN_HTTP

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


class UpOptions(OptionSet, frozen=True):
    """What `up` is asked for, as `LabSettings` has it."""

    netns: Annotated[
        bool, typer.Option("--netns", help="Own network, host name and process tree for each node (root).")
    ] = False
    dbd: Annotated[bool, typer.Option("--dbd", help="Accounting: slurmdbd and a MariaDB of its own.")] = False
    rest: Annotated[bool, typer.Option("--rest", help="slurmrestd on a Unix socket.")] = False
    prefix: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where the Slurm to run is installed. Default: the one on the PATH."),
    ] = None
    defaults: Annotated[bool, typer.Option("--defaults", help="Keep Slurm's own time-outs, which are long.")] = False
    gpus: Annotated[int, typer.Option(metavar="K", help="Fake GPUs of each node.")] = 8
    agents: Annotated[bool, typer.Option("--agents", help="Run `holdfast agent` on every node.")] = False
    devices: Annotated[
        bool, typer.Option("--emulated-devices", help="With --agents: emulated GPUs and dcgmi on every node.")
    ] = False
    port: Annotated[int, typer.Option(metavar="BASE", help="First port; 0: a free range.")] = 0
    boot_s: Annotated[float, typer.Option(min=0.0, help="Seconds that a reboot takes.")] = 2.0
    conf: Annotated[Path | None, typer.Option(metavar="FILE", help="Lines to append to slurm.conf.")] = None


def up(
    nodes: Annotated[int, typer.Argument(metavar="[N]", help="Nodes.")] = 8,
    *,
    lab_dir: Path | None = None,
    asked: UpOptions,
) -> Answer:
    """Start a lab in the background and wait for its nodes. One that runs already is mended."""
    if asked.devices and not asked.agents:
        raise UsageError("--emulated-devices needs --agents: a node's agent makes them")
    prefix = str(asked.prefix.expanduser().resolve()) if asked.prefix is not None else ""
    settings = asked.fill(LabSettings, nodes=nodes, extra_conf=_read(asked.conf), prefix=prefix)
    lab = SlurmLab.start(settings, KIND.folder(lab_dir), follow=False)
    words = [f"{nodes} nodes", *(["a network each"] if asked.netns else []), *(["accounting"] if asked.dbd else [])]
    return KIND.up(lab, ", ".join(words), lab_dir, lab.folder, "sinfo")


def _read(conf: Path | None) -> str:
    if conf is None:
        return ""
    try:
        return conf.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--conf {conf}: {error.strerror}") from error


def _form(lab: SlurmLab) -> Form:
    said = lab.status()
    try:
        states: dict[str, str] = lab.node_states()
    except LinkError:
        states = {}  # slurmctld is down: the rest is still worth seeing
    nodes = {name: node | {"slurm_state": states.get(name, "")} for name, node in said["nodes"].items()}
    return form(
        dir=lab.facts.dir,
        pid=said["pid"],
        slurm_conf=str(lab.facts.conf),
        port=lab.facts.port,
        **fields_of(lab.facts.settings, "netns defaults"),
        daemons=said["daemons"],
        nodes=nodes,
    )


def _shown(found: Form) -> list[RenderableType]:
    head = f"{found['dir']}: ports from {found['port']}{', a network per node' if found['netns'] else ''}"

    def row(name: str, node: dict[str, Any]) -> Iterable[screen.Cell]:
        trouble = [word for word in ("hung", "cut") if node[word]]
        if node["power"] == "on" and not node["services"].get("slurmd", {}).get("running"):
            trouble.append("no slurmd")
        power = Text(node["power"], style="green" if node["power"] == "on" else "red")
        return name, power, node["slurm_state"], ", ".join(trouble), node["instance_id"], node["address"]

    rows = (row(name, node) for name, node in found["nodes"].items())
    nodes = screen.table("node", "power", "Slurm", "trouble", "machine", "address", rows=rows, keep=("node",))
    return [head, daemons_table(found), nodes]


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


def _is_broken(found: Form) -> bool:
    daemons, nodes = found["daemons"].values(), found["nodes"].values()
    return not all(daemon["pid"] for daemon in daemons) or any(node["power"] != "on" for node in nodes)


def _kmsg(lab: SlurmLab, node: str, line: str) -> Path:
    lab.kmsg(node, line)
    return lab.node_dir(node) / "kmsg"


def _environment(lab: SlurmLab) -> dict[str, str]:
    found = {"SLURM_CONF": str(lab.facts.conf), PLAIN_HTTP: "1"}
    prefix = lab.facts.settings.prefix
    return found | ({"PATH": search_path(os.environ.get("PATH", os.defpath), prefix)} if prefix else {})


KIND = Kind(
    name="slurm",
    called="Slurm lab",
    shows="the lab's daemons and nodes",
    attach=SlurmLab.attach,
    end=slurm_lab.down,
    form=_form,
    shown=_shown,
    is_broken=_is_broken,
    env=_environment,
    nodes={
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
    },
    kmsg=_kmsg,
)


@slurm.command()
@answering
def build(
    version: Annotated[str, typer.Argument(metavar="VERSION", help="Such as 24.11.5.")],
    *,
    source: Annotated[
        Path | None,
        typer.Option(
            metavar="TARBALL",
            help="Its sources. Default: slurm-VERSION.tar.bz2 or slurm-wlm_VERSION.orig.tar.gz in this folder.",
        ),
    ] = None,
) -> Answer:
    """Build a Slurm from its source tarball, or find it in the cache. Nothing is downloaded or started."""
    prefix = slurm_build.build(version, source, lambda text: screen.say(text, err=True))
    return Answer(
        lambda: form(slurm=version, prefix=str(prefix)),
        lambda: [f"Slurm {version}: {prefix}", f"  holdfast lab slurm up --prefix {prefix}"],
    )


def add(
    node: NodeArgument,
    *,
    conf: Annotated[str, typer.Option(metavar="WORDS", help='What it offers, such as "CPUs=4 Feature=spare".')] = "",
    lab_dir: Path | None = None,
) -> str:
    """Have a machine join that slurm.conf does not name (slurmd -Z). Needs a lab with --netns."""
    return f"{node} joins with address {KIND.at(lab_dir).add(node, conf)}"


def remove(node: NodeArgument, *, lab_dir: Path | None = None) -> str:
    """Take a machine that joined away again."""
    KIND.at(lab_dir).remove(node)
    return f"{node} is gone"


def _daemon_commands(app: typer.Typer, name: str) -> None:
    def command(verb: str, about: str, sig: signal.Signals | None) -> None:
        def act(*, lab_dir: Path | None = None) -> str:
            lab = KIND.at(lab_dir)
            if name == "slurmdbd" and not lab.facts.settings.dbd:
                raise UsageError("this lab has no slurmdbd: `holdfast lab slurm up --dbd` starts one with it")
            if sig is not None:
                lab.daemons.stop(name, sig=sig)
            else:
                (lab.daemons.start_dbd if name == "slurmdbd" else lab.daemons.start_ctld)()
            return f"{name} {'is up' if sig is None else 'is down'}"

        KIND.act(app, verb, act, about)

    command("start", f"Start {name} and wait until it answers.", None)
    command("stop", f"End {name} in order and wait until it is gone.", signal.SIGTERM)
    command("kill", f"SIGKILL {name}.", signal.SIGKILL)


KIND.answer(slurm, "up", up)
KIND.add_common(slurm)
KIND.add_nodes(node_app)
KIND.act(node_app, "add", add)
KIND.act(node_app, "remove", remove)
KIND.add_kmsg(node_app)
_daemon_commands(ctld_app, "slurmctld")
_daemon_commands(dbd_app, "slurmdbd")
