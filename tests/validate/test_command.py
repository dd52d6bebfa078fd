"""`holdfast validate` as a command: forms, files, history, learning, roles, what is asked wrongly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import yaml

from holdfast.cli.answer import give
from holdfast.cli.validate import advice, own_command, without
from holdfast.cli.validate_pages import as_csv, export, history_answer, keep
from holdfast.errors import UsageError
from holdfast.report.validation import render_html, render_markdown
from holdfast.validate.history import Point, Trend
from holdfast.validate.place import addresses, leader_at, place_of
from holdfast.validate.registry import SUITES
from holdfast.validate.results import Item, NodeResult, Run, Verdict

pytestmark = pytest.mark.timeout(600)


def holdfast(*words: str, home: Path, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}
    return subprocess.run(
        [sys.executable, "-m", "holdfast", "validate", *words],
        env={**kept, "HOME": str(home), **env}, cwd=home, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def sample(at: float = 1_700_000_000.0, rate: float = 100.0) -> Run:
    good = Item(name="cpu.rate", value=rate, unit="MB/s", better="higher")
    bad = Item(
        name="network.pairs",
        verdict=Verdict.FAIL,
        why="<b>3%</b> | lost",
        advice="=check the cable",
        text="x",
        same=True,
    )
    return Run(
        id="v1",
        at=at,
        suites=("cpu", "network"),
        nodes=(
            NodeResult(node="node01", items=(good,)),
            NodeResult(node="node02", rank=1, items=(good, bad)),
            NodeResult(node="node03", rank=2, lost="its line ended"),
        ),
        rounds=("round 1: 1 tests, 1 failed",),
    )


def test_one_node_alone_prints_json_writes_a_page_keeps_history_and_learns(tmp_path: Path) -> None:
    """The quick suites on this machine, then its history, then against what was learned."""
    ours, page = tmp_path / "ours.toml", tmp_path / "page.html"
    first = holdfast("--suite", "cpu,network", "--json", "--learn", str(ours), "--report", str(page), home=tmp_path)
    assert first.returncode == 0, first.stdout + first.stderr
    run = msgspec.json.decode(first.stdout, type=Run)
    assert run.verdict is not Verdict.FAIL
    assert run.nodes[0].item("network.sums").value == 1.0
    assert "<h1>Validation" in page.read_text()
    again = holdfast("--suite", "network", "--baseline", str(ours), "--quiet", home=tmp_path)
    assert "node" in again.stdout.splitlines()[-1]
    told = json.loads(holdfast("history", "--json", "--item", "network.bandwidth", home=tmp_path).stdout)
    assert [len(trend["points"]) for trend in told["trends"]] == [2]


def test_what_is_asked_wrongly_is_one_sentence(tmp_path: Path) -> None:
    """A suite, a baseline, a form that is none; a history that is none; a leader without a secret."""
    for words, sentence in {
        ("--suite", "cpuu"): 'there is no suite "cpuu"; did you mean "cpu"?',
        ("--suite", "cpu", "--baseline", "h100"): 'there is no baseline "h100"',
        ("--resume",): "--resume needs --out",
        ("history",): "there is no history",
        ("--leader", "here:1", "--expect", "2"): "HOLDFAST_VALIDATE_SECRET",
    }.items():
        ran = holdfast(*words, home=tmp_path)
        assert ran.returncode not in {0, 70}, words
        assert sentence in ran.stderr, words
        assert "Traceback" not in ran.stderr
    with pytest.raises(UsageError, match=r"\.html, \.md, \.json or \.csv"):
        export(sample(), [], tmp_path / "x.pdf")


MANIFEST = Path(__file__).resolve().parents[2] / "examples" / "kubernetes" / "validate-job.yaml"


def test_pods_meet_at_an_address_with_a_secret(tmp_path: Path) -> None:
    """The shipped Job's own arguments, as two processes, one of them the leader; the other only serves."""
    _, job = yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8"))
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    port = 21_000 + os.getpid() % 9000
    ours = {"--suite": "software", "--leader": f"127.0.0.1:{port}", "--expect": "2", "--storage": str(tmp_path)}
    words = []
    for word in container["args"]:
        name, _, value = word.partition("=")
        words.append(f"{name}={ours.get(name, value)}" if value else name)
    assert {word.partition("=")[0] for word in words} >= set(ours)
    assert {one["name"] for one in container["env"]} == {"NODE_NAME", "HOLDFAST_VALIDATE_SECRET"}
    env = {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}
    env |= {"HOLDFAST_VALIDATE_SECRET": "0123456789abcdef", "HOME": str(tmp_path)}
    pods = [
        subprocess.Popen(
            [sys.executable, "-m", "holdfast", *words],
            env={**env, "JOB_COMPLETION_INDEX": str(index), "NODE_NAME": f"pod-{index}"}, cwd=tmp_path,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for index in range(2)
    ]  # fmt: skip
    said = [pod.communicate(timeout=300)[0] for pod in pods]
    assert [pod.returncode for pod in pods] == [0, 0], said
    assert "(2 nodes: software" in said[0]
    assert "nodes" not in said[1]


def test_the_shipped_job_expects_as_many_pods_as_it_has_and_names_its_leader() -> None:
    """N stands in three places; the leader is the pod of index 0, under the headless service's name."""
    service, job = yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8"))
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    args = dict(word.partition("=")[::2] for word in pod["containers"][0]["args"])
    assert spec["completions"] == spec["parallelism"] == int(args["--expect"])
    assert spec["completionMode"] == "Indexed"
    job_name, service_name = job["metadata"]["name"], service["metadata"]["name"]
    assert args["--leader"].partition(":")[0] == f"{job_name}-0.{service_name}"
    assert pod["subdomain"] == service_name
    assert service["spec"]["selector"] == {"job-name": job_name}
    assert all(suite in SUITES for suite in args["--suite"].split(","))


def test_a_command_that_is_no_program_is_called_by_its_interpreter(tmp_path: Path) -> None:
    """`python -m holdfast` names a module's file, which srun cannot run."""
    program = tmp_path / "holdfast"
    program.write_text("#!/bin/sh\n")
    module = str(tmp_path / "__main__.py")
    assert own_command([module, "validate"]) == [sys.executable, "-m", "holdfast", "validate"]
    program.chmod(0o755)
    assert own_command([str(program), "validate"]) == [str(program), "validate"]


def test_the_role_follows_from_the_scheduler() -> None:
    """A Slurm step of several nodes, a batch script without srun, an indexed job, nothing."""
    step = {
        "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "3", "SLURM_PROCID": "1",
        "SLURM_STEP_NODELIST": "n[1-3]", "SLURMD_NODENAME": "n2",
    }  # fmt: skip
    place = place_of(step)
    assert (place.node, place.rank, place.world, place.names, place.run) == ("n2", 1, 3, ("n1", "n2", "n3"), "7.0")
    assert place_of({"SLURM_JOB_ID": "7", "SLURM_NNODES": "3", "SLURMD_NODENAME": "n1"}).world == 1
    assert place_of({"JOB_COMPLETION_INDEX": "4", "NODE_NAME": "pod4"}).rank == 4
    assert addresses("localhost")
    assert leader_at("[::1]:80") == ("::1", 80)
    with pytest.raises(UsageError, match="HOST:PORT"):
        leader_at("here")


def test_srun_is_called_without_our_own_words() -> None:
    """--nodes and --partition are srun's from here on."""
    words = ["/bin/holdfast", "validate", "--nodes", "all", "--partition=p5", "--deep"]
    assert without(words, ("--nodes", "--partition")) == ["/bin/holdfast", "validate", "--deep"]


def test_an_errors_text_leads_to_the_catalogues_advice() -> None:
    """NCCL and libfabric's own words are known to the detection."""
    assert advice("RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:268, unhandled system error") != ""
    assert (
        advice("[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:2333") != ""
    )
    assert advice("all is well") == ""


def test_markdown_and_page_escape_what_nodes_say() -> None:
    """A node's words are no markup."""
    trends = [
        Trend(
            node="node02",
            item="cpu.rate",
            points=(Point(1.7e9, 1.0), Point(1.8e9, 2.0)),
            changed_at=1.8e9,
            before=1.0,
            after=2.0,
        )
    ]
    text, page = render_markdown(sample(), trends), render_html(sample(), trends, script="")
    assert text.startswith("# Validation v1: not fit: node02, node03\n")
    assert "<b>" not in text
    assert "\\|" in text
    assert "<b>3%" not in page
    assert "&lt;b&gt;3%" in page
    assert "cpu.rate changed from 1 to 2 (+100%)" in page
    assert "Plotly.newPlot" in page


def test_csv_has_a_row_for_each_item_and_no_formula() -> None:
    """What a spreadsheet would compute is quoted."""
    lines = as_csv(sample()).split("\r\n")
    assert len(lines) == 1 + 3 + 1 + 1
    assert "'=check the cable" in lines[3]
    assert lines[4].startswith("node03,2,lost,fail")


@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
def test_history_survives_in_the_journal(
    store: str, tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each run adds to it, in a file or in PostgreSQL, and it is told from there; without a journal nothing is kept."""
    url = f"sqlite:///{tmp_path}/v.db" if store == "sqlite" else request.getfixturevalue("postgres").schema_url()
    for day in range(3):
        found = keep(sample(1_700_000_000.0 + day * 86400), url)
    assert {(trend.node, len(trend.points)) for trend in found} == {("node01", 3), ("node02", 3)}
    give(history_answer(url, node="node01", items=(), report=tmp_path / "h.csv"), json=True)
    assert [len(trend["points"]) for trend in json.loads(capsys.readouterr().out)["trends"]] == [3]
    assert (tmp_path / "h.csv").read_text().count("node01") == 3
    assert keep(sample(), "") == []


def test_a_node_returns_to_service_only_after_the_suites_of_its_configuration(tmp_path: Path) -> None:
    """The `validating` step: a good node passes, wrong sums keep it out, a suite that is none does, too."""
    import asyncio

    from holdfast.adapters.clock import SystemClock
    from holdfast.adapters.probes.config import parse_config
    from holdfast.agent.suites import suites_passed

    (tmp_path / "sitecustomize.py").write_text(
        "import math\nright = math.fsum\nmath.fsum = lambda values: right(values) * (1 + 2**-50)\n"
    )
    config = parse_config('validate_suites = ["cpu"]\n')
    good = asyncio.run(suites_passed(config, "node07", dict(os.environ), SystemClock()))
    assert (good[0], good[1].startswith("suites cpu passed in ")) == (True, True), good
    spoiled = {**os.environ, "PYTHONPATH": str(tmp_path)}
    bad = asyncio.run(suites_passed(config, "node07", spoiled, SystemClock()))
    assert bad == (False, "cpu.correct: it computes wrong sums")
    wrong = parse_config('validate_suites = ["cup"]\n')
    refused = asyncio.run(suites_passed(wrong, "node07", dict(os.environ), SystemClock()))
    assert refused == (False, 'validate_suites: there is no suite "cup"; did you mean "cpu"?')
