"""W5.5: the example notebook submits a job, follows it through a real fault and queries it as DataFrames.

Real here: an embedded cluster of processes with its controller, torch's gloo training of examples/gpt, pandas. The cells
run in one namespace inside a running event loop, which is how a notebook's kernel runs them; no kernel is started.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pandas as pd
import psutil
import pytest

from cluster_fixture import TestCluster, embedded_cluster
from holdfast.checkpoint import scan
from holdfast.lab.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook" / "follow-a-job.ipynb"
LIMIT_S = 120.0
STEPS = 250


def code_cells() -> list[str]:
    found = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (found["nbformat"], found["nbformat_minor"]) == (4, 5)
    code = [cell for cell in found["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    return ["".join(cell["source"]) for cell in code]


def kill_a_rank(work: Path, cluster: TestCluster, killed: list[int]) -> None:
    """Once the job has saved, has points of its first attempt and trains on: SIGSEGV for the training process of rank 1."""
    wait_until(lambda: scan(work / "checkpoints"), "a checkpoint of the notebook's job", limit_s=LIMIT_S)
    wait_until(lambda: has_points(cluster), "points of steps and losses", limit_s=LIMIT_S)
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            mine = process.cwd() == str(work) and process.environ().get("RANK") == "1"
            if mine and any(word.endswith("gpt/train.py") for word in process.cmdline()):
                process.send_signal(signal.SIGSEGV)
                killed.append(process.pid)


@pytest.mark.walk("W5.5")
def test_the_notebook_submits_follows_and_queries_as_data_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All cells run; a rank dies meanwhile and the job comes back; every DataFrame says what the API says."""

    async def body() -> tuple[dict[str, Any], dict[str, Any]]:
        async with embedded_cluster(tmp_path, nodes=3, controller=True) as cluster:
            (tmp_path / "work").mkdir()
            monkeypatch.chdir(tmp_path / "work")
            monkeypatch.setenv("HOLDFAST_CLUSTER_DIR", str(cluster.folder))
            train = NOTEBOOK.parent.parent / "gpt" / "train.py"
            monkeypatch.setenv("TRAIN", f"{train} --steps {STEPS} --checkpoint-every 10")
            killed: list[int] = []
            breaking = threading.Thread(target=kill_a_rank, args=(tmp_path / "work", cluster, killed), daemon=True)
            breaking.start()
            names: dict[str, Any] = {}
            for number, source in enumerate(code_cells()):
                began = time.monotonic()
                exec(compile(source, f"cell {number}", "exec"), names)
                print(f"cell {number}: {time.monotonic() - began:.1f} s")
            assert len(killed) == 1
            return names, api(cluster, names["job"])

    names, said = asyncio.run(body())
    check_jobs(names, said)
    check_incident(names, said)
    check_points(names, said)


def reading(cluster: TestCluster) -> httpx.Client:
    """The API, read without the client."""
    folder = cluster.folder / "controller"
    head = {"Authorization": f"Bearer {(folder / 'token').read_text().strip()}"}
    url = json.loads((folder / "controller.json").read_text())["url"]
    return httpx.Client(base_url=url, headers=head, trust_env=False)


def has_points(cluster: TestCluster) -> bool:
    with reading(cluster) as http:
        return all(
            http.get("/v1/samples", params={"series": series, "subject": "job:*"}).json()["points"]
            for series in ("step", "loss")
        )


def api(cluster: TestCluster, job: str) -> dict[str, Any]:
    """What the API says of the job."""
    with reading(cluster) as http:
        routes = {
            "jobs": "/v1/jobs", "attempts": f"/v1/jobs/{job}/attempts", "incidents": "/v1/incidents",
            "events": f"/v1/events?job={job}", "step": f"/v1/samples?series=step&subject=job:{job}(*",
            "loss": f"/v1/samples?series=loss&subject=job:{job}(*",
        }  # fmt: skip
        return {name: http.get(route).json() for name, route in routes.items()}


def check_jobs(names: dict[str, Any], said: dict[str, Any]) -> None:
    jobs, attempts, job = names["jobs"], names["attempts"], names["job"]
    (told,) = said["jobs"]
    assert list(jobs.index) == [job]
    row = jobs.loc[job]
    assert (row["state"], row["view.name"], row["view.user"]) == ("completed", "notebook", told["view"]["user"])
    assert row["durable_step"] == told["durable_step"] == STEPS
    assert list(attempts.index) == [0, 1]
    for one in (route["attempt"] for route in said["attempts"]):
        shown = attempts.loc[one.get("number", 0)]
        for name in ("resumed_from", "last_step", "signal", "exit_code"):
            assert shown[name] == one[name] if name in one else pd.isna(shown[name]), (name, one)
        assert shown["started_at"] == pd.to_datetime(one["started_at"], unit="s")
    assert attempts.loc[1, "resumed_from"] >= 10
    times = [one["at"] for one in said["events"]["events"]]
    assert len(names["events"]) > 5
    assert list(names["events"]["at"]) == times[: len(names["events"])]
    print(names["events"], jobs.iloc[0], attempts.T, names["phases"].T, names["steps"].tail(), sep="\n\n")


def check_incident(names: dict[str, Any], said: dict[str, Any]) -> None:
    (told,) = said["incidents"]
    incidents, phases = names["incidents"], names["phases"]
    assert list(incidents.index) == list(phases.index) == [told["id"]]
    assert incidents.loc[told["id"], "diagnosis.cause"] == told["diagnosis"]["cause"]
    assert incidents.loc[told["id"], "outcome"] == told["outcome"] == "recovered"
    for name, (begin, end) in names["PHASES"].items():
        assert phases.loc[told["id"], name] == pytest.approx(told["marks"][end] - told["marks"][begin]), name
    assert 0 <= phases.loc[told["id"], "detect"] < phases.loc[told["id"], "recover"]


def check_points(names: dict[str, Any], said: dict[str, Any]) -> None:
    """Every point shown is one of the API's, which may have learned more since; the loss curve has both attempts."""
    points = names["points"]
    for series in ("step", "loss"):
        values = Counter(value for _, _, value in said[series]["points"])
        shown = Counter(points[points["series"] == series]["value"])
        assert shown.total() > 2
        assert shown <= values
    assert 10 < names["steps"].max().max() <= STEPS
    assert sorted(points["attempt"].unique()) == [0, 1]
    assert {trace.name for trace in names["curve"].data} == {"0", "1"}
    assert len(names["progress"].data) == points["subject"].nunique()
    assert len(names["bars"].data) == 1
