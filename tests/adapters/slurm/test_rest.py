"""Looks by slurmrestd: which of its versions, its words for trouble, the tools in its place, and a real one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from holdfast.adapters.slurm.client import SlurmOrchestrator
from holdfast.adapters.slurm.looks import Looks, Reading
from holdfast.adapters.slurm.memory import Memory
from holdfast.adapters.slurm.output import jobs_of_json, pulse_of
from holdfast.adapters.slurm.rest import Rest
from holdfast.adapters.slurm.settings import SlurmConfig
from holdfast.adapters.slurm.tool import Tool
from holdfast.errors import ConfigError, LinkError, WireError
from holdfast.lab.slurm_lab import SlurmLab
from holdfast.model.cluster import WorldView
from holdfast.wiring.orchestrators import make_orchestrator, placed_slurm
from holdfast.wiring.settings import Settings, load_settings
from slurm_fixture import need_slurm
from slurm_world import small_lab

Answers = dict[str, tuple[int, object]]


class Stub:
    """Answers by path; keeps what was asked."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.asked: list[httpx.Request] = []

    def rest(self, place: str = "unix:/run/slurmrestd.sock", token_file: Path | None = None) -> Rest:
        return Rest(place, token_file, transport=httpx.MockTransport(self._answer))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        status, body = self.answers.get(request.url.path, (404, "no such page"))
        return httpx.Response(status, content=body if isinstance(body, bytes) else json.dumps(body).encode())


def api(*paths: str) -> tuple[int, object]:
    return 200, {"openapi": "3.0.2", "paths": {path: {"get": {}} for path in paths}}


def jobs_of(rest: Rest) -> bytes:
    async def body() -> bytes:
        try:
            return await rest.jobs()
        finally:
            await rest.close()

    return asyncio.run(body())


@pytest.mark.parametrize(
    ("paths", "used"),
    [
        (("/slurm/v0.0.36/jobs", "/slurm/v0.0.38/jobs", "/slurm/v0.0.38/job/{id}"), "/slurm/v0.0.38/jobs"),
        (("/slurm/v0.0.39/jobs", "/slurm/v0.0.41/jobs/", "/slurmdb/v0.0.43/jobs/"), "/slurm/v0.0.41/jobs/"),
        (("/slurm/v0.0.9/jobs/", "/slurm/v0.0.40/jobs/", "/slurm/v0.0.40/jobs/state/"), "/slurm/v0.0.40/jobs/"),
    ],
)
def test_the_newest_form_that_is_offered_is_asked_for_as_it_is_written(paths: tuple[str, ...], used: str) -> None:
    stub = Stub({"/openapi/v3": api(*paths), used: (200, {"errors": [], "jobs": []})})
    assert jobs_of_json(jobs_of(stub.rest())) == []
    assert [request.url.path for request in stub.asked] == ["/openapi/v3", used]


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ({}, "/openapi/v3: HTTP 404"),
        ({"/openapi/v3": (200, b"<html>")}, "/openapi/v3 is no JSON document"),
        ({"/openapi/v3": (200, {"paths": 3})}, "is no description of an API"),
        ({"/openapi/v3": api("/slurmdb/v0.0.38/jobs")}, "offers no list of jobs"),
        ({"/openapi/v3": api("/slurm/v0.0.38/jobs")}, "/slurm/v0.0.38/jobs: HTTP 404"),
        (
            {"/openapi/v3": api("/slurm/v0.0.38/jobs"), "/slurm/v0.0.38/jobs": (401, b"Authentication failure")},
            "/slurm/v0.0.38/jobs: HTTP 401",
        ),
        (
            {
                "/openapi/v3": api("/slurm/v0.0.38/jobs"),
                "/slurm/v0.0.38/jobs": (200, {"errors": [{"error": "Unable to contact slurm controller"}], "jobs": []}),
            },
            "/slurm/v0.0.38/jobs: Unable to contact slurm controller",
        ),
    ],
)
def test_what_is_no_list_of_jobs_is_no_empty_cluster(answers: Answers, says: str) -> None:
    with pytest.raises(LinkError, match=says):
        jobs_of(Stub(answers).rest())


def test_another_slurmrestd_at_the_same_place_has_its_version_found() -> None:
    stub = Stub({"/openapi/v3": api("/slurm/v0.0.38/jobs"), "/slurm/v0.0.38/jobs": (200, {"jobs": []})})

    async def body() -> None:
        rest = stub.rest()
        await rest.jobs()
        stub.answers = {"/openapi/v3": api("/slurm/v0.0.40/jobs/"), "/slurm/v0.0.40/jobs/": (200, {"jobs": []})}
        with pytest.raises(LinkError, match="404"):
            await rest.jobs()
        await rest.jobs()
        await rest.close()

    asyncio.run(body())


def test_the_token_is_read_at_each_request(tmp_path: Path) -> None:
    """Tokens run out and are written anew; what `scontrol token` prints is taken as it is."""
    file = tmp_path / "token"
    file.touch(mode=0o600)
    stub = Stub({"/openapi/v3": api("/slurm/v0.0.40/jobs"), "/slurm/v0.0.40/jobs": (200, {"jobs": []})})
    for written, sent in (("SLURM_JWT=abc.def.ghi\n", "abc.def.ghi"), ("xyz\n", "xyz")):
        file.write_text(written)
        jobs_of(stub.rest("https://slurm.example:6820", file))
        assert stub.asked[-1].headers["X-SLURM-USER-TOKEN"] == sent
    assert "x-slurm-user-token" not in Stub({}).rest()._headers()


@pytest.mark.parametrize(
    ("content", "mode", "says"),
    [
        (b"", 0o600, "is empty"),
        (b"a\xff", 0o600, "is not ASCII text"),
        (b"abc", 0o644, "chmod 600"),
        (None, 0, "No such"),
    ],
)
def test_a_token_that_cannot_be_used_is_named_and_nothing_is_sent(
    content: bytes | None, mode: int, says: str, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
        file.chmod(mode)
    stub = Stub({})
    with pytest.raises(LinkError, match=says) as raised:
        jobs_of(stub.rest("https://slurm.example:6820", file))
    assert str(file) in str(raised.value)
    assert stub.asked == []


@pytest.mark.parametrize(
    ("place", "has_token", "says"),
    [
        ("unix:run/s.sock", False, "write unix:/path/of/slurmrestd.sock, from the root"),
        ("slurm.example:6820", False, "https://HOST:PORT"),
        ("https://", False, "https://HOST:PORT"),
        ("https://me:secret@slurm.example", False, "https://HOST:PORT"),
        ("https://slurm.example:port", False, "not an address"),
        ("http://slurm.example:6820", True, "in clear text"),
    ],
)
def test_a_place_that_is_none_is_refused_in_one_sentence(
    place: str, has_token: bool, says: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=says) as raised:
        Rest(place, tmp_path / "token" if has_token else None)
    assert "secret" not in str(raised.value)


def test_the_file_says_where_it_is(tmp_path: Path) -> None:
    """`rest_token_file` is relative to the file, as all its paths; a bad place ends the start."""
    file = tmp_path / "holdfast.toml"
    file.write_text('[slurm]\nrest = "https://slurm.example:6820"\nrest_token_file = "jwt"\n')
    slurm = placed_slurm(load_settings(file))
    assert slurm.rest_token_file == str(tmp_path / "jwt")
    orchestrator = make_orchestrator("slurm:", tmp_path, slurm)
    assert isinstance(orchestrator, SlurmOrchestrator)
    assert orchestrator.rest is not None
    assert orchestrator.rest.place == "https://slurm.example:6820"
    assert orchestrator.rest._token_file == tmp_path / "jwt"
    assert placed_slurm(Settings(load_settings(file).config)).rest_token_file
    file.write_text('[slurm]\nrest = "slurm.example"\n')
    with pytest.raises(ConfigError, match="write unix:"):
        make_orchestrator("slurm:", tmp_path, placed_slurm(load_settings(file)))


def test_a_pulse_differs_where_a_look_is_worth_it() -> None:
    """A job's or node's state counts, its load does not; the order in which they are listed does not, either."""
    jobs = [{"job_id": 1, "job_state": "RUNNING", "cpus": 4}, {"job_id": 2, "job_state": ["PENDING"]}]
    nodes = [{"name": "n1", "state": "idle", "state_flags": [], "cpu_load": 3}, {"name": "n2", "state": ["DOWN"]}]

    def pulse(what: str, listed: list[dict[str, object]]) -> bytes:
        return pulse_of(what, json.dumps({what: listed, "errors": []}).encode())

    assert pulse("jobs", jobs) == pulse("jobs", [jobs[1], {**jobs[0], "cpus": 8}])
    assert pulse("nodes", nodes) == pulse("nodes", [nodes[1], {**nodes[0], "cpu_load": 9}])
    for change in (
        {"job_state": "FAILED"},
        {"state_reason": "JobHeldUser"},
        {"excluded_nodes": "n1"},
        {"submit_time": 8},
    ):
        assert pulse("jobs", jobs) != pulse("jobs", [{**jobs[0], **change}, jobs[1]])
    for change in ({"state_flags": ["DRAIN"]}, {"reason": "bad"}, {"state": "allocated"}):
        assert pulse("nodes", nodes) != pulse("nodes", [{**nodes[0], **change}, nodes[1]])
    for what in ("jobs", "nodes"):
        with pytest.raises(WireError, match="no list of"):
            pulse_of(what, b'{"errors": []}')


@pytest.fixture(scope="module")
def lab() -> Iterator[SlurmLab]:
    need_slurm(rest=True)
    with small_lab(2, rest=True) as lab:
        yield lab


def looked(lab: SlurmLab, folder: Path, rest: Rest | None) -> tuple[Reading, bytes, Looks]:
    async def body() -> tuple[Reading, bytes, Looks]:
        looks = Looks(Tool(lab.facts.conf, lab.env()), Memory(folder), rest)
        try:
            return await looks.fresh(), await looks.pulse(), looks
        finally:
            if rest is not None:
                await rest.close()

    return asyncio.run(body())


@pytest.mark.cluster
def test_a_real_slurmrestd_tells_what_the_tools_tell(lab: SlurmLab, tmp_path: Path) -> None:
    """Jobs field by field, nodes as far as both tell; then it is killed, and the tools are asked without a gap."""
    place = f"unix:{lab.folder}/run/slurmrestd.sock"
    comment = '--comment={"holdfast": {}}'
    running = lab.sbatch(["--output=/dev/null", comment], script="#!/bin/bash\nsleep 600\n")
    held = lab.sbatch(
        ["--output=/dev/null", "--hold", '--job-name=a b"c', "--exclude=node02"], script="#!/bin/bash\nexit\n"
    )
    lab.until_job(running, "RUNNING", limit_s=120)
    lab.run(["scontrol", "update", "nodename=node02", "state=drain", "reason=two words"])
    try:
        by_rest, pulse, looks = looked(lab, tmp_path, Rest(place))
        by_tools, _, _ = looked(lab, tmp_path, None)
        assert looks.rest_count == 4
        assert {running, held} <= by_rest.jobs.keys()
        assert by_rest.jobs == by_tools.jobs
        assert by_rest.nodes.keys() == by_tools.nodes.keys() == {"node01", "node02"}
        for name, node in by_tools.nodes.items():
            told = by_rest.nodes[name]
            assert (told.states & node.states, told.reason, told.reason_at) == (
                told.states,
                node.reason,
                node.reason_at,
            )
            assert (told.address, told.port, told.gpus) == (node.address, node.port, node.gpus)
            assert (told.boot_at, told.slurmd_at, told.partitions) == (node.boot_at, node.slurmd_at, node.partitions)
        lab.run(["scontrol", "release", held])
        assert looked(lab, tmp_path, Rest(place))[1] != pulse
        lab.daemons.stop("slurmctld")
        with pytest.raises(LinkError):
            jobs_of(Rest(place))
        lab.daemons.start_ctld()
        lab.daemons.stop("slurmrestd")
        after, _, looks = looked(lab, tmp_path, Rest(place))
        assert looks.rest_count == 0
        assert running in after.jobs
    finally:
        lab.daemons.start_ctld()
        lab.run(["scancel", running, held])


@pytest.mark.cluster
def test_a_change_is_learned_by_slurmrestd_alone(lab: SlurmLab, tmp_path: Path) -> None:
    """The controller's view and its waiting for a change, with the two tools for looks out of reach but for the facts."""
    lab.daemons.start_rest()
    config = SlurmConfig(rest=f"unix:{lab.folder}/run/slurmrestd.sock")

    async def body() -> tuple[str, WorldView, WorldView, dict[str, int]]:
        slurm = SlurmOrchestrator(config, conf=lab.facts.conf, folder=tmp_path)
        try:
            before = await slurm.observe()
            job = await asyncio.to_thread(lab.sbatch, ["--output=/dev/null", "--hold"], script="#!/bin/bash\nexit\n")
            after = before
            async with asyncio.timeout(60):
                while job not in {view.key.id for view in after.jobs}:
                    await slurm.wait_change(5.0)
                    after = await slurm.observe()
            await asyncio.to_thread(lab.run, ["scancel", job])
            return job, before, after, dict(slurm.tool.calls)
        finally:
            await slurm.close()

    job, before, after, calls = asyncio.run(body())
    assert {view.key.id for view in after.jobs} - {view.key.id for view in before.jobs} == {job}
    assert "squeue" not in calls
    assert "sinfo" not in calls
