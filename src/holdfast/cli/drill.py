"""`holdfast drill ...`: list the drills, show one, run them, and say whether recovery works.

Wires an embedded cluster or a Slurm lab, the controller and the training job together through `drill.campaign`.
Progress goes to standard error, results to standard output; the exit code is 0 when every drill that was tried has
passed, else 1.
"""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import signal
import tempfile
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

import typer

from holdfast.adapters.clock import SystemClock
from holdfast.cli import screen
from holdfast.cli.answer import Answer, answering, group, taking
from holdfast.cli.drill_schedule import app as schedule_app
from holdfast.cli.inject import inject
from holdfast.cli.json_forms import fields_of, form
from holdfast.cli.options import ConfigOption, JsonOption, OptionSet
from holdfast.drill.kinds import KINDS, SLURM
from holdfast.drill.results import DrillResult, DrillRun, render_junit, run_form
from holdfast.drill.scenario import Scenario, find, shipped
from holdfast.drill.site_settings import SiteSettings
from holdfast.errors import EXIT_FAILED, UsageError
from holdfast.wiring.drill_site import site_of

app = group("Break things on purpose and measure the recovery.")

app.command("inject")(inject)
app.add_typer(schedule_app, name="schedule")


On = Literal["local", "slurm", "kubernetes", "site"]
TABLE = (
    "good",
    "hang_user_buffer",
    "crash_segfault",
    "straggler",
    "hang_allreduce",
    "hang_p2p",
    "straggler_then_hang",
)
"""The faults of Mission Control's injector."""


class RunChoices(OptionSet, frozen=True):
    """The options of `holdfast drill run`."""

    all_drills: Annotated[bool, typer.Option("--all", help="Every drill that ships.")] = False
    table: Annotated[bool, typer.Option("--table", help="The seven faults of Mission Control's injector.")] = False
    on: Annotated[
        On,
        typer.Option(
            help="Where: an embedded cluster, a real Slurm or Kubernetes here, or `site`: the running cluster of "
            "holdfast.toml."
        ),
    ] = "local"
    config: ConfigOption = None
    until_cancelled: Annotated[
        bool, typer.Option("--until-cancelled", help="Let each job train on afterwards until scancel, or Ctrl-C.")
    ] = False
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", "-debug", help="Tell what becomes of the job, line by line.")
    ] = False
    workload: Annotated[Literal["counter", "gpt"], typer.Option(help="What trains meanwhile.")] = "counter"
    launcher: Annotated[Literal["holdfast", "torchrun"], typer.Option(help="What starts the ranks.")] = "holdfast"
    seed: Annotated[int, typer.Option(help="Decides which rank or node is hit.")] = 1
    repeat: Annotated[int, typer.Option(min=1, metavar="N", help="Each drill N times.")] = 1
    fresh: Annotated[bool, typer.Option("--fresh", help="A cluster of its own for every drill.")] = False
    policy: Annotated[Path | None, typer.Option(metavar="FILE", help="The controller's policy.")] = None
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep results, reports and logs in this new folder.")
    ] = None
    keep: Annotated[bool, typer.Option("--keep", help="Keep the folder even when everything has passed.")] = False
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML for CI.")] = None
    json: JsonOption = False


@app.command("list")
@answering
def list_drills() -> Answer:
    """List the drills that ship with Holdfast."""
    found = shipped()
    rows = ((one.name, one.kind, one.definition.target, one.title) for one in found.values())
    table = screen.table("drill", "kind", "hits", "what happens", rows=rows, keep=("drill", "kind"))
    return Answer(lambda: form(drills=list(map(_list_form, found.values()))), lambda: [table])


@app.command()
@answering
def show(
    name: Annotated[str, typer.Argument(metavar="NAME|FILE", help="A drill, as `holdfast drill list` shows it.")],
) -> Answer:
    """Show one drill as it is written down: copy it to make your own."""
    scenario = find(name)
    if name in shipped():
        text = (resources.files("holdfast.drill") / "scenarios" / f"{name}.toml").read_text(encoding="utf-8")
    else:
        text = Path(name).read_text(encoding="utf-8")
    kind = KINDS[scenario.kind]
    return Answer(
        lambda: _list_form(scenario) | {"about": scenario.about, "params": scenario.settings},
        lambda: [text.rstrip(), f"\n# {kind.name}: {kind.about}. Injected so: {kind.how}."],
    )


@app.command()
@taking
def run(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME|FILE...", help="Drills to run, in this order.")
    ] = None,
    *,
    given: RunChoices,
) -> None:
    """Run drills and judge what Holdfast did about each."""
    on, out, json = given.on, given.out, given.json
    if given.launcher == "torchrun" and given.workload == "counter":
        raise UsageError("--launcher torchrun keeps the port that the counter meets its peers at: add --workload gpt")
    scenarios = _chosen([*(TABLE if given.table else ()), *(names or [])], all_drills=given.all_drills, on=on)
    site = _site(on, given.config)
    folder = _folder(out)
    if on == "slurm" and out is None:
        folder.chmod(0o755)  # munged refuses a socket below a folder that others may not enter
    from holdfast.drill.campaign import CampaignSettings, run_campaign  # noqa: PLC0415 - `list` needs no controller

    has_torch = importlib.util.find_spec("torch") is not None
    settings = given.fill(CampaignSettings, folder=folder, has_torch=has_torch, site=site)

    _end_in_order()
    finished = asyncio.run(
        run_campaign(
            scenarios,
            settings,
            clock=SystemClock(),
            on_note=lambda note: screen.say(f"  {note}", err=True),
            on_result=lambda result: _tell(result, json=json),
        )
    )
    if given.junit is not None:
        screen.save(given.junit, render_junit(finished))
    if json:
        screen.say_json(run_form(finished))
    else:
        screen.say(_count(finished))
    if finished.passed and out is None and not given.keep:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        screen.say(f"results and logs: {folder}", err=True)
    if not finished.passed:
        raise typer.Exit(EXIT_FAILED)


def _end_in_order() -> None:
    """A time limit's SIGTERM, and a terminal that is gone, end the drill's job as Ctrl-C does."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup's choice stays
            signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))


def _tell(result: DrillResult, *, json: bool) -> None:
    screen.say(_line(result), err=json)
    for check in result.failures:
        screen.say(f"      {check.name}: expected {check.expected}, got {screen.clean(check.actual)}", err=json)


def _count(finished: DrillRun) -> str:
    tried = [drill for drill in finished.drills if not drill.skipped]
    passed = sum(1 for drill in tried if drill.passed)
    return f"{passed} of {len(tried)} drills passed in {finished.seconds:.0f} s"


def _chosen(names: list[str], *, all_drills: bool, on: On) -> list[Scenario]:
    if all_drills and names:
        raise UsageError("--all runs every drill that ships: name drills or give --all, not both")
    if all_drills:
        cluster = SLURM if on == "slurm" else "local" if on == "site" else on
        return [scenario for scenario in shipped().values() if not scenario.definition.lacking(cluster)]
    if not names:
        raise UsageError("no drill is named: `holdfast drill list` shows them, --all runs all of them")
    return [find(name) for name in names]


def _site(on: On, config: Path | None) -> SiteSettings | None:
    if on == "site":
        return site_of(config)
    if config is not None:
        raise UsageError("--config names the cluster of --on site: add that, or leave --config away")
    return None


def _folder(out: Path | None) -> Path:
    if out is None:
        return Path(tempfile.mkdtemp(prefix="holdfast-drill-"))
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"--out {out}: there is something already; name a new folder")
    out.mkdir(parents=True, exist_ok=True)
    return out.absolute()


def _line(result: DrillResult) -> str:
    if result.skipped:
        return f"SKIP  {result.name}: {result.skipped}"
    word = "ok  " if result.passed else "FAIL"
    facts = []
    if result.incident is not None:
        cause = result.incident.diagnosis.cause if result.incident.diagnosis else "no diagnosis"
        facts.append(screen.clean(cause))
        if result.detect_s is not None:
            facts.append(f"found after {result.detect_s:.2f} s")
        if result.recover_s is not None:
            facts.append(f"proven after {result.recover_s:.1f} s")
        if result.incident.lost_steps is not None:
            facts.append(f"{result.incident.lost_steps} steps lost")
    return f"{word}  {result.name:<22} {', '.join(facts) or 'nothing was done'}  [{result.seconds:.0f} s]"


def _list_form(scenario: Scenario) -> dict[str, object]:
    kind = scenario.definition
    return fields_of(scenario, "name kind title") | {"hits": kind.target, "reach": kind.reach}
