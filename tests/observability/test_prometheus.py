"""What is shipped for Prometheus, Alertmanager and Grafana, against the real programs scraping a real Holdfast."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import SimpleNamespace

import httpx
import msgspec
import pytest
import yaml
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector
from tests.api.engine_house import EngineHouse, engine_served, job_view, until
from tests.api.test_api import TOKENS

from holdfast import __version__
from holdfast.adapters.catalogue_files import read_catalogue, read_matcher
from holdfast.adapters.clock import SystemClock
from holdfast.adapters.emulated import devices
from holdfast.adapters.probes.config import parse_config
from holdfast.adapters.probes.reach import Reach
from holdfast.adapters.probes.rounds import Looker
from holdfast.adapters.slurm.figures import Look, SlurmCollector, parse_jobs, parse_nodes
from holdfast.agent.controller_link import ControllerLink
from holdfast.agent.node_facts import GpuTable, NodeIdentity
from holdfast.agent.node_loop import AgentSettings, NodeAgent
from holdfast.api import Role
from holdfast.api.limits import LimitGate
from holdfast.api.metrics import ControllerCollector, Tally
from holdfast.cli.exporters import of_prometheus
from holdfast.cli.machine import State
from holdfast.cockpit.routes import LISTS
from holdfast.controller import Figures
from holdfast.controller.fleet import Fleet, IncidentLine, NodeLine
from holdfast.model import events as e
from holdfast.model.cluster import JobKey
from holdfast.model.evidence import Domain, Finding, Place, Severity
from holdfast.model.records import Mark, NodeState
from holdfast.ports import Entry, Touched
from parsers import ParserInside

pytestmark = pytest.mark.timeout(600)
SHIPPED = Path(__file__).resolve().parents[2] / "deploy" / "observability"
PROGRAMS = ("prometheus", "promtool", "amtool")
GPUS = [(f"0000:{bus}:00", f"GPU-{bus}") for bus in ("53", "64")]


def program(name: str) -> str:
    """The program, which `make test` installs; where it could not, make has said so, and this says it again."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"left out: {name} is not installed (apt-get install prometheus prometheus-alertmanager)")
    return found


def said(*words: str | Path, cwd: Path | None = None) -> str:
    result = subprocess.run([*map(str, words)], capture_output=True, text=True, cwd=cwd, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


def dashboards() -> dict[str, dict]:
    return {path.stem: json.loads(path.read_text()) for path in sorted((SHIPPED / "grafana/dashboards").glob("*.json"))}


def make_dashboards():
    import importlib.util

    spec = importlib.util.spec_from_file_location("make_dashboards", SHIPPED / "grafana/make_dashboards.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_rules_do_what_their_tests_say():
    """promtool: the rules load, and each alert fires when, and only when, it should."""
    folder = SHIPPED / "prometheus"
    assert "SUCCESS" in said(program("promtool"), "check", "rules", "holdfast.rules.yml", cwd=folder)
    assert "SUCCESS" in said(program("promtool"), "test", "rules", "holdfast.rules.test.yml", cwd=folder)


def test_every_alert_has_a_test_of_its_own():
    """No alert is shipped that the promtool tests never saw fire; each says what is so and what to do."""
    rules = yaml.safe_load((SHIPPED / "prometheus/holdfast.rules.yml").read_text())
    tests = yaml.safe_load((SHIPPED / "prometheus/holdfast.rules.test.yml").read_text())
    fired = {
        one["alertname"] for test in tests["tests"] for one in test.get("alert_rule_test", []) if one["exp_alerts"]
    }
    alerts = [rule for group in rules["groups"] for rule in group["rules"] if "alert" in rule]
    assert {rule["alert"] for rule in alerts} == fired
    assert all(set(rule["annotations"]) == {"summary", "action", "runbook_url", "page"} for rule in alerts)
    asked = {one["expr"] for test in tests["tests"] for one in test.get("promql_expr_test", [])}
    recorded = {rule["record"] for group in rules["groups"] for rule in group["rules"] if "record" in rule}
    assert recorded - asked == {"holdfast:jobs_pending_age_seconds:max", "holdfast:checkpoint_age_seconds"}


def test_every_alert_leads_to_its_part_of_the_docs_and_to_a_page_of_the_cockpit():
    """docs/alerts.md has a heading for each alert, in the rules' order, and no other; every page is one of the cockpit's."""
    rules = yaml.safe_load((SHIPPED / "prometheus/holdfast.rules.yml").read_text())
    alerts = [rule for group in rules["groups"] for rule in group["rules"] if "alert" in rule]
    headings = re.findall(r"^## (.*)$", (SHIPPED.parents[1] / "docs/alerts.md").read_text(), re.MULTILINE)
    assert headings == [rule["alert"] for rule in alerts]
    base = "{{ $externalLabels.holdfast }}/"
    for rule in alerts:
        said = rule["annotations"]
        assert said["runbook_url"] == "{{ $externalLabels.holdfast_docs }}/alerts.md#" + rule["alert"].lower()
        page, _, name = said["page"].removeprefix(base).partition("/")
        assert said["page"].startswith(base)
        assert page in {"", *LISTS}
        assert not name or (page in {"nodes", "jobs"} and name.startswith("{{ "))


def test_prometheus_and_alertmanager_take_their_files():
    """The example configurations are valid, and alerts go where the example says."""
    said(program("promtool"), "check", "config", SHIPPED / "prometheus/prometheus.yml")
    config = SHIPPED / "alertmanager/alertmanager.yml"
    said(program("amtool"), "check-config", config)
    routed = said(program("amtool"), "config", "routes", "test", f"--config.file={config}", "severity=critical")
    assert routed.strip().startswith("pager")
    drilled = said(
        program("amtool"), "config", "routes", "test", f"--config.file={config}", "severity=critical", "drill=true"
    )
    assert drilled.split()[0] == "chat", "nobody is called out of bed by a drill"


def test_what_a_drill_did_is_marked():
    """Nodes and open incidents of a drill carry drill="true"; all others have an empty label, which is none."""
    fleet = Fleet()
    fleet.nodes = {
        "n1": NodeLine("n1", NodeState.QUARANTINED, "gpu", incident="i1"),
        "n2": NodeLine("n2", NodeState.QUARANTINED, "gpu", incident="i2"),
        "n3": NodeLine("n3", NodeState.HEALTHY, "gpu"),
    }
    fleet.incidents = {"i1": IncidentLine("i1", 50.0, drill="xid74"), "i2": IncidentLine("i2", 70.0)}
    standing_in = SimpleNamespace(
        health=lambda: SimpleNamespace(
            ready=1, failing="", blind=False, unseen=(), looked_at=0.0, seq=0, epoch=0, queue=0, orders=0
        ),
        figures=Figures(),
        presence=SimpleNamespace(beats=0),
    )
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in ControllerCollector(standing_in, fleet, Tally(), LimitGate()).collect()
        for sample in family.samples
    }
    assert found["holdfast_node_unhealthy", "n1", "gpu", "quarantined", "true"] == 1
    assert found["holdfast_node_unhealthy", "n2", "gpu", "quarantined", ""] == 1
    assert found["holdfast_nodes", "gpu", "quarantined", "true"] == 1
    assert found["holdfast_nodes", "gpu", "healthy", ""] == 1
    assert found["holdfast_incident_oldest_open_timestamp_seconds", "true"] == 50
    assert found["holdfast_incident_oldest_open_timestamp_seconds", ""] == 70


def test_dashboards_are_what_their_maker_makes():
    """The JSON beside the maker is current; each board has its name, 30 s refresh, the ranges and the annotations."""
    maker = make_dashboards()
    for path, text in maker.texts().items():
        assert path.read_text(encoding="utf-8") == text, "run deploy/observability/grafana/make_dashboards.py"
    boards = dashboards()
    assert {board["title"] for board in boards.values()} == {
        "GPU Health", "Slurm Jobs", "Network Performance", "Recovery"
    }  # fmt: skip
    for board in boards.values():
        assert board["refresh"] == "30s"
        assert board["timepicker"]["time_options"][0] == "1h"
        assert board["timepicker"]["time_options"][-1] == "30d"
        assert [one["name"] for one in board["annotations"]["list"]] == ["injected", "detected", "recovered"]
        ids = [panel["id"] for panel in board["panels"]] if "id" in board["panels"][0] else []
        assert len(set(ids)) == len(ids)
        assert all(panel["title"] and panel["description"] for panel in board["panels"])


@contextmanager
def prometheus(folder: Path, targets: dict[str, str]) -> Iterator[str]:
    """A real Prometheus that scrapes these with a viewer's token, with the shipped rules; gives its address."""
    binary = program("prometheus")
    rules = folder / "rules.yml"
    rules.write_text(
        re.sub(r"interval: (30s|5m)", "interval: 1s", (SHIPPED / "prometheus/holdfast.rules.yml").read_text())
    )
    config = {
        "global": {"scrape_interval": "3s", "scrape_timeout": "3s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [
            {
                "job_name": job,
                "static_configs": [{"targets": [target]}],
                "authorization": {"credentials": TOKENS[Role.VIEWER]},
            }
            for job, target in targets.items()
        ],
    }
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [binary, f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}",
             f"--web.listen-address=127.0.0.1:{port}"],
            stdout=log, stderr=log,
        )  # fmt: skip
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(120)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


async def ask(http: httpx.AsyncClient, expression: str) -> list[dict]:
    answer = await http.get("/api/v1/query", params={"query": expression})
    assert answer.status_code == 200, f"{expression}: {answer.text}"
    return answer.json()["data"]["result"]


async def until_there(http: httpx.AsyncClient, expression: str, limit_s: float = 400) -> list[dict]:
    deadline = time.monotonic() + limit_s
    while True:
        try:
            found = await ask(http, expression) if (await http.get("/-/ready")).status_code == 200 else []
        except httpx.HTTPError:
            found = []
        if found:
            return found
        assert time.monotonic() < deadline, f"never there: {expression}"
        await asyncio.sleep(0.2)


@asynccontextmanager
async def agent(folder: Path, url: str):
    """A real agent that looks at emulated GPUs through the real NVML binding; gives the address of its figures."""
    devices.prepare(folder / "dev", GPUS, machine="m-n1", booted="b-n1")
    (folder / "kmsg").touch()
    (folder / "agent-token").write_text(TOKENS[Role.AGENT])
    (folder / "agent-token").chmod(0o600)
    reach = Reach(devices.environment(folder / "dev", dict(os.environ)), emulated=True)
    one = NodeAgent(
        AgentSettings(kernel_log=folder / "kmsg", state_dir=folder / "agent", beat_s=0.2, metrics="127.0.0.1:0"),
        identity=NodeIdentity(name="n1", boot_id="b-n1", instance_id="m-n1"),
        gpus=GpuTable({}),
        parser=ParserInside(read_matcher(read_catalogue())),
        clock=SystemClock(),
        controller=ControllerLink(url, token_file=folder / "agent-token"),
        looker=Looker(reach, parse_config("poll_s = 0.5\n"), clock=SystemClock()),
    )
    task = asyncio.create_task(one.run())
    try:
        await until(lambda: one.metrics_at and one.heard and one.health is not None and one.health.looker.gpus)
        yield one.metrics_at
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def happenings(house: EngineHouse) -> None:
    """A job that trains and saves, one that waits, a drill, faults that repair and one that stays, a person's word."""
    await house.run_job()
    house.world.set_job(job_view(JobKey("test", "8"), ()))
    now = time.time()
    await house.controller.submit(e.DrillFired(id="drill", at=now, drill="xid79", kind="xid", node="n1"))
    for node in ("n3", "n4", "n5"):
        await house.fault(node)
    lost = Finding(
        id="net", rule="nccl.timeout", at=now, domain=Domain.NETWORK, severity=Severity.ERROR, place=Place(node="n2")
    )
    await house.controller.submit(e.FindingSeen(id="net", at=now, source="agent:n2", finding=lost))
    incident = next(iter(house.server.app.state.fleet.incidents))
    record = (await house.controller.journal.incidents(incident=incident))[0]
    # The phases of a whole recovery, as a closed incident has them; what closes one is the engine's tests' matter.
    begun = record.opened_at
    marks = {mark: begun + place for place, mark in enumerate(Mark)}
    done = msgspec.structs.replace(record, closed_at=begun + 20, outcome="recovered", marks=marks)
    house.server.app.state.tally.take([Entry(e.NodeHeard(id="x", at=now, node="n1"), [], Touched(incidents=[done]))])


@pytest.mark.timeout(1800)
def test_every_query_is_answered_by_a_prometheus_that_scrapes_a_real_holdfast(tmp_path: Path):
    """Controller, agent and Slurm's exporter are scraped; each query of rules and dashboards is understood, and each
    one that asks for Holdfast's own figures gets some."""
    program("prometheus")

    async def work() -> None:
        notices = Notices()
        async with (
            engine_served(tmp_path, collectors=(notices,)) as house,
            agent(tmp_path, house.server.url) as agent_at,
            figures_of(slurm_figures()) as slurm_at,
        ):
            targets = {
                "holdfast-controller": house.server.url.removeprefix("http://"),
                "holdfast-agent": agent_at,
                "slurm": slurm_at,
            }
            with prometheus(tmp_path, targets) as url:
                async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=120) as http:
                    await until_there(http, "count(up == 1) == 3")
                    await until_there(http, "holdfast_ready == 1")
                    await happenings(house)
                    notices.sent += 5
                    await until_there(http, 'holdfast_incidents_closed_total{outcome="recovered"}')
                    await until_there(http, "holdfast:recovery_seconds:p50_1d")
                    await until_there(http, "holdfast:jobs_pending_age_seconds:max")
                    empty = [one for one in queries() if not await answered(http, one)]
                    foreign = [one for one in empty if not own(one)]
                    assert sorted(set(empty) - set(foreign)) == []
                    assert foreign, "the queries for DCGM and InfiniBand find nothing here"
                    rules = (await http.get("/api/v1/rules")).json()["data"]["groups"]
                    wrong = [one["lastError"] for group in rules for one in group["rules"] if one.get("lastError")]
                    assert wrong == []
                    assert sum(len(group["rules"]) for group in rules) >= 20
                    told = {one.name: one for one in await asyncio.to_thread(of_prometheus, url)}
                    for name in ("prometheus", "holdfast-controller", "holdfast-agent", "slurm", "holdfast's rules"):
                        assert told[name].state is State.OK, told[name]
                    assert f"version {__version__}" in told["holdfast-controller"].found
                    assert told["node"].state is State.MISSING
                    assert told["remote_write"].state is State.ABSENT

    asyncio.run(work())


async def answered(http: httpx.AsyncClient, expression: str, limit_s: float = 200) -> bool:
    """Does the query give something, within some scrapes? What compares (`> 0`) may rightly give nothing."""
    deadline = time.monotonic() + (limit_s if own(expression) else 0)
    plain = re.sub(r"\s*(>|<|==)\s*[\d.]+\s*$", "", expression)
    await ask(http, expression)
    while not await ask(http, plain):
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(0.3)
    return True


def own(expression: str) -> bool:
    """Does it ask only for what Holdfast gives?"""
    return not re.search(r"DCGM_|node_infiniband_", expression.partition(" or DCGM")[0])


def queries() -> list[str]:
    """Every expression of dashboards and rules, with Grafana's own words filled in."""
    maker = make_dashboards()
    found = [one for board in dashboards().values() for one in maker.expressions(board)]
    rules = yaml.safe_load((SHIPPED / "prometheus/holdfast.rules.yml").read_text())
    found += [rule["expr"] for group in rules["groups"] for rule in group["rules"] if "record" in rule]
    return list(
        dict.fromkeys(
            one.replace("$__interval", "30s").replace("$__range", "1h").replace("$user", ".*").strip() for one in found
        )
    )


class Notices(Collector):
    """Counts of notices as the notifier gives them."""

    sent = 1

    def collect(self):
        family = CounterMetricFamily("holdfast_notices", "Notices.", labels=["destination", "outcome"])
        family.add_metric(["chat", "sent"], self.sent)
        yield family


@asynccontextmanager
async def figures_of(collector: Collector):
    """A collector served as `/metrics` by prometheus_client's own server."""
    registry = CollectorRegistry()
    registry.register(collector)
    server, thread = start_http_server(0, "127.0.0.1", registry)
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        thread.join(200)


def slurm_figures() -> Collector:
    """Slurm's exporter over recorded words of squeue and sinfo: what is asked a second time has moved on."""
    return SlurmCollector(RecordedSlurm(), look_again_s=0.5)


def when(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at))


class RecordedSlurm:
    """Recorded output of squeue and sinfo, each look some seconds later."""

    def __init__(self) -> None:
        self.now = time.time()
        self.looks = 0

    def __call__(self) -> Look:
        self.looks += 1
        self.now += 1
        at = int(self.now)
        return Look(
            at=self.now,
            jobs=parse_jobs(
                f"11|RUNNING|gpu|mei|{when(at - 900)}|{when(at - 600)}|{when(at + 600)}\n"
                f"12|PENDING|gpu|ken|{when(at - 2400)}|N/A|N/A\n"
                f"{20 + self.looks}|COMPLETED|gpu|mei|{when(at - 4000)}|{when(at - 3600)}|{when(at - 2)}\n"
            ),
            nodes=parse_nodes("n1|idle\nn2|mixed\nn3|drained*\nn3|drained*\n"),
        )
