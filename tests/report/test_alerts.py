"""Alerts of Prometheus beside the incidents of a report: what fired, what should have, what had no reason."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from holdfast.adapters.prometheus import Prometheus, shown
from holdfast.cli.report_alerts import read_alerts
from holdfast.errors import LinkError, UsageError
from holdfast.lab.waiting import wait_until
from holdfast.model.cluster import JobKey, NodeView
from holdfast.model.records import IncidentRecord, Mark, NodeRecord
from holdfast.report.alerts import Alerts, Firing, expected, firings, missed, unfounded
from holdfast.report.gather import ReportData
from holdfast.report.sections import coverage

BEGIN = 1_790_000_000.0


def incident(name: str, node: str, *, fenced: float, returned: float | None, closed: float) -> IncidentRecord:
    marks = {Mark.FAULT: BEGIN + fenced, Mark.ISOLATED: BEGIN + fenced}
    if returned is not None:
        marks[Mark.NODE_RETURNED] = BEGIN + returned
    return IncidentRecord(
        id=name, opened_at=BEGIN + fenced, closed_at=BEGIN + closed, jobs=[JobKey("c", "1")], nodes=[node], marks=marks,
        attempt_before=0, outcome="recovered",
    )  # fmt: skip


QUICK = incident("i-quick", "node01", fenced=100, returned=160, closed=170)
SLOW = incident("i-slow", "node02", fenced=1000, returned=5000, closed=1100)
LONG = incident("i-long", "node03", fenced=8000, returned=8030, closed=11_000)
ALL = [QUICK, SLOW, LONG]


def told(*found: Firing) -> Alerts:
    return Alerts("http://p", found, {"holdfast-agent": 0.998}, {"GPU": 2, "network": 3})


def test_what_should_have_fired_is_foretold_only_where_the_rule_had_time() -> None:
    """A node fenced for a minute and an incident closed within half an hour raise nothing."""
    assert [(one.name, one.incident) for one in expected(ALL, BEGIN + 20_000)] == [
        ("NodeFault", "i-slow"),
        ("IncidentNotRecovered", "i-long"),
    ]
    still = incident("i-still", "node04", fenced=100, returned=None, closed=200)
    assert [one.ends_at for one in expected([still], BEGIN + 900)] == [BEGIN + 900]


def test_an_alert_is_matched_by_name_node_and_time() -> None:
    """On another node, or long after, it is another alert: the expected one is missed and this one has no reason."""
    right = Firing("NodeFault", "node02", BEGIN + 1090, BEGIN + 5030)
    elsewhere = Firing("NodeFault", "node09", BEGIN + 1090, BEGIN + 5030)
    late = Firing("IncidentNotRecovered", "", BEGIN + 15_000, BEGIN + 15_100)
    wanted = expected(ALL, BEGIN + 20_000)
    assert [one.incident for one in missed(told(right, late), wanted)] == ["i-long"]
    assert unfounded(told(right, elsewhere, late), ALL, BEGIN + 20_000) == [elsewhere, late]
    assert unfounded(told(Firing("GpuTooHot", "node09", BEGIN, BEGIN + 1)), ALL, BEGIN + 20_000) == []


def test_points_become_spans_and_a_gap_parts_them() -> None:
    """Fired at three moments in a row, then again later."""
    labels = {"alertname": "AgentDown", "instance": "node05:9100"}
    got = firings([(labels, [15.0, 30.0, 45.0, 300.0])], 15.0)
    assert got == (Firing("AgentDown", "node05:9100", 15.0, 60.0), Firing("AgentDown", "node05:9100", 300.0, 315.0))


def test_the_summary_shows_it_and_says_how_to_get_it() -> None:
    """Without a Prometheus: not measured, and the option. With one: counts, shares and names."""
    nodes = [NodeRecord(f"node{n:02d}", NodeView(f"node{n:02d}")) for n in range(1, 5)]
    made = ReportData("t", "c", BEGIN + 20_000, [], nodes, ALL, since=BEGIN)
    rows = {row[0]: row[1:] for row in coverage(made).rows}
    assert rows["alerts of Prometheus"] == ("not measured", "give --prometheus URL")
    made.alerts = told(Firing("NodeFault", "node02", BEGIN + 1090, BEGIN + 5030))
    rows = {row[0]: row[1:] for row in coverage(made).rows}
    assert rows["alerts that fired"] == ("1", "NodeFault 1")
    assert rows["alerts that should have fired"] == ("50.0 % (1 of 2)", "IncidentNotRecovered of i-long")
    assert rows["targets of holdfast-agent that answered"] == ("99.8 %", "-")
    assert rows["nodes with GPU metrics"] == ("50.0 % (2 of 4)", "-")


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        (httpx.Response(200, text="<html>"), "no Prometheus"),
        (httpx.Response(200, json=[1]), "no Prometheus"),
        (httpx.Response(400, json={"status": "error", "error": "too many points"}), "too many points"),
    ],
)
def test_what_is_no_prometheus_is_one_sentence(answer: httpx.Response, part: str) -> None:
    """It names the address and who gave it."""

    async def ask() -> None:
        async with Prometheus("http://there:9", transport=httpx.MockTransport(lambda _: answer)) as there:
            await there.up(0.0, 10.0)

    with pytest.raises(LinkError, match=part) as caught:
        asyncio.run(ask())
    assert "--prometheus http://there:9" in str(caught.value)


def test_an_address_that_is_none_is_refused() -> None:
    """Before anything is asked."""
    with pytest.raises(UsageError, match="write an address"):
        Prometheus("prom.example:9090")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://p:9090/x", "http://p:9090/x"),
        ("https://me:pw@p/x", "https://p/x"),
        ("https://me:p@w@p", "https://p"),
        ("https://me:p/w@p", "https://p"),
        ("https://me:p?w#@p?token=t", "https://p"),
        ("me:pw@p:9090", "p:9090"),
        ("//me:pw@p", "//p"),
        ("", ""),
    ],
)
def test_an_address_is_shown_without_its_secrets(url: str, said: str) -> None:
    """User, password and query, also of what is no proper address."""
    assert shown(url) == said


@pytest.mark.parametrize(
    "url",
    ["https://me:s3cr3t@127.0.0.1:1", "https://me:s3/cr3t@127.0.0.1:1", "me:s3cr3t@p", "http://me:s3cr3t@p:99999"],
)
def test_no_error_says_the_password(url: str) -> None:
    """An address that is none, and one where nobody answers."""
    with pytest.raises((UsageError, LinkError)) as caught:
        asyncio.run(read_alerts(url, "--prometheus", BEGIN, BEGIN + 60))
    assert not [word for word in ("s3", "cr3t", "me:") if word in str(caught.value)]


@pytest.mark.parametrize(
    "result",
    [
        None, 3, "x", {"a": 1}, [None], ["a"], [{}], [{"metric": []}], [{"metric": {}, "value": [1]}],
        [{"metric": {}, "value": [1, "NaN"], "values": [["NaN", "1"]]}], [{"metric": None, "value": [1, "1"]}],
        [{"metric": {}, "value": [1, {}], "values": [1]}], [{"metric": {}, "value": [1, "+Inf"], "values": [[1]]}],
    ],
)  # fmt: skip
def test_odd_answers_are_one_sentence(result: object) -> None:
    """Whatever stands in an answer: that it is no Prometheus's is said, and nothing else is raised."""
    body = {"status": "success", "data": {"result": result}}
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=body))

    async def ask(question: str) -> None:
        async with Prometheus("http://there:9", transport=transport) as there:
            if question == "firing":
                await there.firing(0.0, 10.0)
            elif question == "up":
                await there.up(0.0, 10.0)
            else:
                await there.instances(["a"], 0.0, 10.0)

    for question in ("firing", "up", "instances"):
        if (question, result) != ("instances", [{"metric": None, "value": [1, "1"]}]):
            with pytest.raises(LinkError, match="no Prometheus"):
                asyncio.run(ask(question))


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[str]:
    """A real Prometheus that holds an hour in which an alert fired and one of two targets was down for a half."""
    server, tool = shutil.which("prometheus"), shutil.which("promtool")
    if server is None or tool is None:
        pytest.skip("left out: prometheus is not installed (apt-get install prometheus)")
    lines = ["# TYPE ALERTS gauge"]
    labels = 'alertname="NodeFault",alertstate="firing",node="node02",severity="warning"'
    lines += [f"ALERTS{{{labels}}} 1 {BEGIN + at:.0f}" for at in range(600, 1200, 15)]
    lines += ["# TYPE up gauge"]
    for name, share in (("a", 1.0), ("b", 0.5)):
        lines += [
            f'up{{job="holdfast-agent",instance="{name}"}} {int(at < 3600 * share)} {BEGIN + at:.0f}'
            for at in range(0, 3600, 15)
        ]
    lines += ["# TYPE holdfast_gpu_temperature_celsius gauge"]
    lines += [f'holdfast_gpu_temperature_celsius{{instance="a"}} 60 {BEGIN + at:.0f}' for at in range(0, 3600, 15)]
    (tmp_path / "om").write_text("\n".join([*lines, "# EOF"]) + "\n")
    data = tmp_path / "data"
    subprocess.run(
        [tool, "tsdb", "create-blocks-from", "openmetrics", str(tmp_path / "om"), str(data)],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    (tmp_path / "p.yml").write_text("{}\n")
    with (tmp_path / "log").open("wb") as log:
        for _ in range(5):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                address = f"127.0.0.1:{free.getsockname()[1]}"
            argv = [server, f"--config.file={tmp_path / 'p.yml'}", f"--storage.tsdb.path={data}"]
            argv += [f"--web.listen-address={address}", "--storage.tsdb.retention.time=100y", "--log.level=error"]
            process = subprocess.Popen(argv, stdout=log, stderr=log)
            try:
                over = lambda p=process, a=address: p.poll() is not None or _is_ready(a)  # noqa: E731
                wait_until(over, "Prometheus neither gets ready nor ends", limit_s=90.0)
                if process.poll() is None:
                    yield f"http://{address}"
                    return
                # Somebody else took the port in between: another one.
            finally:
                process.kill()
                process.wait()
    pytest.fail((tmp_path / "log").read_text())


def _is_ready(address: str) -> bool:
    try:
        return httpx.get(f"http://{address}/-/ready", timeout=10.0, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def test_a_real_prometheus_is_read(prometheus: str) -> None:
    """The span of the alert, the mean of two targets, and one instance with GPU metrics, none with network's."""
    got = asyncio.run(read_alerts(prometheus, "--prometheus", BEGIN, BEGIN + 3600))
    assert [(one.name, one.node) for one in got.firing] == [("NodeFault", "node02")]
    assert got.firing[0].begins_at == pytest.approx(BEGIN + 600, abs=16)
    assert got.up["holdfast-agent"] == pytest.approx(0.75, abs=0.01)
    assert got.having == {"GPU": 1, "network": 0}
    assert json.dumps(got.up)
