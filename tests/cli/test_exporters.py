"""`holdfast doctor` about exporters: what Prometheus says of them, in one line each, and what this machine serves."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from conftest import Holdfast
from holdfast.cli.exporters import PAGE_MAX, of_prometheus, on_this_machine
from holdfast.cli.machine import Fact, State

URL = "http://prometheus:9090"


def target(job: str, instance: str, *, error: str = "") -> dict[str, Any]:
    health = "down" if error else "up"
    return {"labels": {"job": job, "instance": instance}, "health": health, "lastError": error}


class Recorded:
    """A Prometheus that answers from a table; what is not in it is empty."""

    def __init__(self) -> None:
        self.targets = [
            target("holdfast-controller", "c:8470"), target("holdfast-agent", "n1:9471"), target("node", "n1:9100"),
            target("node", "n2:9100"), target("dcgm", "n1:9400"), target("slurm", "c:9472"),
        ]  # fmt: skip
        self.rules = [{"name": "holdfast-jobs", "rules": [{"name": "JobPendingLong", "state": "firing"}]}]
        self.yaml = "global: {}\n"
        self.queries: dict[str, list[tuple[dict[str, str], float]]] = {
            "timestamp(up": [({}, 8.0)],
            "node_exporter_build_info": [({"version": "1.5.0"}, 1.0), ({"version": "1.8.1"}, 1.0)],
            "DCGM_FI_DEV_GPU_TEMP": [({"DCGM_FI_DRIVER_VERSION": "550.54"}, 40.0)],
        }

    def answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/api/v1/")
        data: Any = {
            "status/buildinfo": {"version": "2.42.0"},
            "targets": {"activeTargets": self.targets},
            "rules": {"groups": self.rules},
            "status/config": {"yaml": self.yaml},
        }.get(path)
        if data is None:
            asked = request.url.params["query"]
            found = next((series for part, series in self.queries.items() if part in asked), [])
            data = {"result": [{"metric": labels, "value": [0, str(value)]} for labels, value in found]}
        return httpx.Response(200, json={"status": "success", "data": data})

    def facts(self) -> dict[str, Fact]:
        return {one.name: one for one in of_prometheus(URL, httpx.MockTransport(self.answer))}


def test_what_is_well_is_said_with_age_and_version() -> None:
    """Each exporter's count, freshness and versions; the rules; no remote_write is no fault."""
    found = Recorded().facts()
    assert {one.state for name, one in found.items() if name != "remote_write"} == {State.OK}
    assert found["node"].found == "2 of 2 answer, newest sample 8 s old, version 1.5.0 (1), 1.8.1 (1)"
    assert found["dcgm"].found.endswith("version 550.54")
    assert found["holdfast's rules"].found == "1 loaded, 1 alerts fire now"
    assert found["remote_write"].state is State.ABSENT


def test_a_controller_that_stands_by_is_no_fault_beside_one_that_answers() -> None:
    """A standby answers its scrapes with 503. Without one that leads, and from others, that is a fault."""
    recorded, away = Recorded(), "server returned HTTP status 503 Service Unavailable"
    recorded.targets.append(target("holdfast-controller", "d:8470", error=away))
    found = recorded.facts()["holdfast-controller"]
    assert found.state is State.OK
    assert found.found.startswith("1 of 2 answer, 1 stand by, newest sample 8 s old")
    recorded.targets.append(target("holdfast-controller", "e:8470", error="connection refused"))
    assert recorded.facts()["holdfast-controller"].state is State.BROKEN
    recorded.targets = [target("holdfast-controller", "d:8470", error=away), target("node", "n1:9100", error=away)]
    found = recorded.facts()
    assert (found["holdfast-controller"].state, found["node"].state) == (State.BROKEN, State.BROKEN)


def test_what_is_wrong_is_named_with_its_place() -> None:
    """A target that does not answer, one that nobody scrapes, samples that are old, rules that are not there."""
    recorded = Recorded()
    recorded.targets[2:] = [target("node", "n1:9100"), target("node", "n2:9100", error="connection refused")]
    recorded.rules = []
    found = recorded.facts()
    assert (found["node"].state, found["node"].found) == (
        State.BROKEN, "1 of 2 answer; n2:9100: connection refused"
    )  # fmt: skip
    assert (found["dcgm"].state, found["slurm"].state) == (State.MISSING, State.MISSING)
    assert "dcgm-exporter" in found["dcgm"].advice
    assert found["holdfast's rules"].state is State.MISSING
    recorded.queries["timestamp(up"] = [({}, 400.0)]
    assert recorded.facts()["holdfast-agent"].state is State.BROKEN


def test_a_store_that_falls_behind_or_loses_samples_is_broken() -> None:
    """remote_write by its own figures, without the password of its address; configured and not seen is said, too."""
    recorded = Recorded()
    store = {"url": "https://cluster:secret@store/api/v1/write"}
    recorded.queries |= {
        "max(prometheus_remote_storage_highest": [({}, 1000.0)],
        "queue_highest_sent": [(store, 995.0)],
    }
    fact = recorded.facts()["remote_write"]
    assert (fact.state, fact.found) == (
        State.OK, "https://store/api/v1/write: 5 s behind, 0 samples lost in 15 minutes"
    )  # fmt: skip
    recorded.queries["queue_highest_sent"] = [(store, 700.0)]
    assert recorded.facts()["remote_write"].state is State.BROKEN
    recorded.queries["queue_highest_sent"] = [(store, 999.0)]
    recorded.queries["samples_failed_total"] = [(store, 7.0)]
    assert "7 samples lost" in recorded.facts()["remote_write"].found
    del recorded.queries["max(prometheus_remote_storage_highest"]
    recorded.yaml = "remote_write:\n- url: https://store\n"
    assert recorded.facts()["remote_write"].state is State.MISSING


@pytest.mark.parametrize(
    "url",
    [
        "https://scraper:s3cr3t@prometheus:9090/path",
        "https://scraper:s3@cr3t@prometheus:9090/path",
        "https://scraper:s3/cr3t@prometheus:9090/path",
        "https://scraper:1/s3?cr3t@prometheus:99999/path",
        "https://s3cr3t@prometheus:9090/path",
        "scraper:s3cr3t@prometheus:9090/path",
        "https://prometheus:9090/path?token=s3cr3t",
    ],
)
def test_a_password_in_the_address_is_never_said(url: str) -> None:
    """Neither where all is well nor in an error, httpx's own (which quotes the address asked) included."""

    def refuse(_: httpx.Request) -> httpx.Response:
        return httpx.Response(401)

    def die(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError(f"cannot reach {request.url} of {url}")

    for answer in (Recorded().answer, refuse, die):
        facts = of_prometheus(url, httpx.MockTransport(answer))
        said = " ".join(f"{one.found} {one.advice}" for one in facts)
        assert "prometheus:9" in said
        assert not [word for word in ("s3", "cr3t", "scraper") if word in said]


def test_the_password_of_the_address_is_used() -> None:
    """What is not said is sent, decoded."""
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["Authorization"])
        return httpx.Response(403)

    of_prometheus("https://me:p%40w@prometheus:9090", httpx.MockTransport(answer))
    assert seen == ["Basic " + base64.b64encode(b"me:p@w").decode()]


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"data": 3}', b'{"data": {"version": "2"}}'])
def test_what_is_no_prometheus_is_said_in_one_line(body: bytes) -> None:
    """Whatever answers: one line, no traceback."""
    facts = of_prometheus(URL, httpx.MockTransport(lambda _: httpx.Response(200, content=body)))
    assert [one.state for one in facts] == [State.BROKEN]
    assert "\n" not in facts[0].found


def test_exporters_of_this_machine_are_found_at_their_ports() -> None:
    """One that answers with its version, one that fails, others that are not there."""
    page = 'node_exporter_build_info{branch="x",version="1.5.0"} 1\n# HELP up\nup 1\n'

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.port == 9100:
            return httpx.Response(200, text=page)
        if request.url.port == 9400:
            return httpx.Response(500)
        raise httpx.ConnectError("refused")

    found = {one.name: one for one in on_this_machine(httpx.MockTransport(answer))}
    assert found["node metrics"].found == "port 9100, 2 series, version 1.5.0"
    assert found["dcgm metrics"].state is State.MISSING
    assert found["slurm metrics"].state is State.ABSENT


def test_a_page_without_an_end_is_read_to_a_bound() -> None:
    """Whatever listens at an exporter's port: no more than `PAGE_MAX` is read, and what came is told."""
    sent = 0

    class Endless(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            nonlocal sent
            while True:
                sent += 1
                yield b"up 1\n" * 10_000

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.port == 9100:
            return httpx.Response(200, stream=Endless())
        raise httpx.ConnectError("refused")

    found = {one.name: one for one in on_this_machine(httpx.MockTransport(answer))}
    assert found["node metrics"].state is State.OK
    assert sent <= PAGE_MAX // 50_000 + 1


def test_doctor_ends_with_1_when_the_named_prometheus_does_not_answer(holdfast: Holdfast) -> None:
    """Asked for and not there: exit code 1, and the JSON form says which."""
    done = holdfast("doctor", "--json", "--prometheus", "http://127.0.0.1:1")
    assert done.code == 1
    assert next(one for one in json.loads(done.out) if one["name"] == "prometheus")["state"] == "broken"
