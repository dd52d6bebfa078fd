"""`holdfast drill inject`: break one emulated device of a node, now, without a scenario.

For trying out how the agent, the controller and a policy see a fault. Only nodes that are open to drills are touched,
and only GPUs that are emulated: nothing here reaches hardware. No time passes but the scheduler's for a log line.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from holdfast.adapters.emulated.faults import FAULTS, Hit
from holdfast.adapters.emulated.layout import Devices
from holdfast.adapters.local.client import LocalOrchestrator
from holdfast.agent.node_facts import read_embedded
from holdfast.cli import screen
from holdfast.cli.answer import Answer, answering
from holdfast.cli.json_forms import form
from holdfast.cli.options import DirOption
from holdfast.errors import NotFoundError, RefusedError, UsageError
from holdfast.model.toml_lines import did_you_mean
from holdfast.wiring.settings import default_folder


@answering
def inject(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="What breaks; `list` shows all.")],
    *,
    node: Annotated[str, typer.Option(metavar="NAME", help="The embedded node.")] = "",
    gpu: Annotated[int, typer.Option(min=0, help="Index of the GPU.")] = 0,
    link: Annotated[int, typer.Option(min=0, max=17, help="Number of the NVLink.")] = 0,
    value: Annotated[int, typer.Option(help="How much: see `list`.")] = 1,
    cluster_dir: DirOption = None,
    devices_dir: Annotated[
        Path | None, typer.Option("--devices", metavar="DIR", help="A folder of emulated devices, in place of a node.")
    ] = None,
) -> Answer:
    """Break an emulated GPU of a node that is open to drills. Faults: ecc, xid, thermal, nvlink, gpu_lost, and more."""
    if kind == "list":
        return _list()
    if kind not in FAULTS:
        raise UsageError(f'there is no fault "{kind}"{did_you_mean(kind, FAULTS)}')
    folder = (cluster_dir or default_folder()).resolve()
    where = devices_dir or _of_node(folder, node) / "devices"
    try:
        with Devices(where / "state") as found:
            line = FAULTS[kind].apply(found, Hit(gpu, link, value))
    except OSError as error:
        raise NotFoundError(
            f"{where} holds no emulated devices: start the cluster with `holdfast cluster up --devices`"
        ) from error
    except ValueError as error:
        raise UsageError(str(error)) from error
    if line and devices_dir is None:
        asyncio.run(LocalOrchestrator(folder / "cluster.sock").do("kmsg", node, text=line))
    made = form(kind=kind, node=node, gpu=gpu, kernel_line=line, emulated=True)
    said = f"injected into emulated GPU {gpu} of {node or where}: {kind} ({FAULTS[kind].about})"
    return Answer(lambda: made, lambda: [said, *([f"kernel log: {line}"] if line else [])])


def _of_node(folder: Path, node: str) -> Path:
    if not node:
        raise UsageError("say which node: --node NAME, or --devices DIR")
    place = folder / "nodes" / node
    if not (place / "node.json").exists():
        raise NotFoundError(f"there is no node {node} in {folder}")
    if not read_embedded(place)[0].drill_ok:
        raise RefusedError(f"{node} is not open to drills: start the cluster with --drill-ok")
    return place


def _list() -> Answer:
    faults = {name: fault.about for name, fault in FAULTS.items()}
    table = screen.table("fault", "what happens", rows=faults.items(), keep=("fault",))
    return Answer(lambda: form(faults=faults), lambda: [table])
