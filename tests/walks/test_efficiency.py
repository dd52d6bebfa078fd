"""W3.4: training-time efficiency, downtime of each attempt and failed restarts, from recordings.

The example has the shape of the guide's: two restarts, of which the second is cancelled before its first checkpoint.
The real engine takes its events at the times of `PLAN` and the real journal holds them; what is expected is worked out
from `PLAN` alone. A second recording is that of a real run, and what is expected of it are the times that the script
itself wrote down.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.cockpit.history import Recorded
from tests.cockpit.served import run, served
from tests.decide.play import KEY, NODES, S
from tests.walks.login_node import holdfast

from holdfast.adapters.journal import open_journal
from holdfast.adapters.policy_files import packaged_presets
from holdfast.api import Role
from holdfast.decide.engine import Engine
from holdfast.lab.waiting import wait_until
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.cluster import JobKey
from holdfast.model.policy_toml import parse_policy

POLICY = 'preset = "mission-control"\n[limits]\nmax_requeues = 3\n'
OTHER = JobKey("c", "8")
"""A job beside it that nothing disturbs."""
OTHER_MINUTES = 100.0
LATE_S = 5.0
"""A line is read within a tenth of a second; a machine with other work may take longer."""


class Attempt(NamedTuple):
    """Minutes after the job's begin."""

    start: float
    first_step: float
    saves: tuple[float, ...]
    end: float


PLAN = (
    Attempt(0, 4, (31, 58, 85), 92),
    Attempt(103, 112, (142, 172), 178),
    Attempt(190, 196, (), 204),
)
"""The third attempt is cancelled eight minutes after its first step: it has saved nothing."""


def by_hand() -> tuple[list[float], list[float]]:
    """Minutes trained and minutes down of each attempt, by the guide's definition.

    Training lasts from a load to the newest save behind it; downtime from that save to the next load, for an attempt
    that saves nothing to its end.
    """
    first, second, third = PLAN
    trained = [first.saves[-1] - first.first_step, second.saves[-1] - second.first_step, 0.0]
    down = [0.0, second.first_step - first.saves[-1], third.end - second.saves[-1]]
    return trained, down


def example(begin: float) -> Recorded:
    """The events of `PLAN`, as a launcher and a scheduler tell them."""
    play = Recorded()
    policies = parse_policy(POLICY, "mission-control.toml", packaged_presets())
    play.engine = Engine(policies, scope="cluster", presets=packaged_presets())

    def at(minutes: float) -> None:
        play.now = begin + 60.0 * minutes

    at(-1)
    play.do(e.PolicyLoaded, toml=POLICY, file="mission-control.toml")
    play.nodes(*NODES, "n5", "n6")
    play.job(nodes=NODES)
    play.job(OTHER, nodes=("n6",))
    play.attach()
    step = 0
    for number, one in enumerate(PLAN):
        if number == 0:
            at(one.start)
            play.start(0)
        resumed = step
        at(one.first_step)
        play.first_step(number, resumed + 1, resumed_from=resumed)
        for save in one.saves:
            at(save)
            step += 1000
            play.checkpoint(number, step)
        at(one.end)
        if number == len(PLAN) - 1:
            break
        play.crash(number, node="n2")
        requeued(play, number + 1, begin + 60.0 * PLAN[number + 1].start)
    play.ended(number)
    play.job(state=S.CANCELLED, nodes=())
    beside(play, begin)
    return play


def requeued(play: Recorded, restart_count: int, starts_at: float) -> None:
    """The job goes through the queue as Mission Control's policy has it; its next attempt starts then."""
    play.ended(restart_count - 1)
    while not play.opened(o.RequeueHeld):
        play.fire(next(name for name in play.engine.state.timers if name.startswith(("settle:", "job:"))))
    play.done(o.RequeueHeld)
    play.job(state=S.HELD, restart_count=restart_count, nodes=())
    while not play.opened(o.ReleaseJob):
        if play.opened(o.SetExcluded):
            play.done(o.SetExcluded)
        else:
            play.fire("settle:")
    play.done(o.ReleaseJob)
    play.now = starts_at - 1.0
    play.job(state=S.RUNNING, nodes=NODES)
    play.attach(restart_count=restart_count)
    play.now = starts_at
    play.start(restart_count, restart_count=restart_count, epoch=play.j.epoch)


def beside(play: Recorded, begin: float) -> None:
    """Job 8 trains for `OTHER_MINUTES` and completes."""
    told: dict[str, Any] = {"job": OTHER, "attempt": 0, "source": "launcher:8"}
    play.do(e.LauncherAttached, job=OTHER, restart_count=0, nodes=("n6",), ranks=1, source="launcher:8")
    started = play.now
    play.do(e.AttemptStarted, epoch=1, nodes=("n6",), ranks=1, **told)
    play.do(e.FirstStepDone, step=1, resumed_from=0, **told)
    play.now = started + 60.0 * OTHER_MINUTES
    play.do(e.AttemptEnded, exit_code=0, last_step=100, **told)
    play.job(OTHER, state=S.COMPLETED, nodes=())


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example in a real journal: it began a day ago."""
    path = tmp_path_factory.mktemp("example") / "journal.db"
    play = example(time.time() - 86400.0)

    async def write() -> None:
        journal = open_journal(f"sqlite:///{path}")
        await journal.acquire("controller:example", lease_s=60.0, now=play.now)
        await journal.append(play.entries)
        await journal.release()
        await journal.close()

    asyncio.run(write())
    return path


def report(journal: Path, *words: str | Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(holdfast("report", "--journal", journal, "--json", *words))
    return found


def near(minutes: float) -> Any:
    return pytest.approx(60.0 * minutes, abs=1.0)


@pytest.mark.walk("W3.4")
def test_the_example_of_the_guide_is_computed_from_its_recording(recording: Path) -> None:
    """`holdfast report`: efficiency of the job and in total, downtime of each attempt, one of two restarts failed.

    The percentage that the guide shows for such a run comes out, to the digit that it prints.
    """
    trained, down = by_hand()
    expected = sum(trained) / (sum(trained) + sum(down))
    made = report(recording)
    (job,) = [one["training"] for one in made["jobs"] if one["job"] == str(KEY)]
    assert job["efficiency"] == pytest.approx(expected, abs=2e-4)
    assert (job["trained_s"], job["downtime_s"]) == (near(sum(trained)), near(sum(down)))
    assert [one["trained_s"] for one in job["attempts"]] == [near(minutes) for minutes in trained]
    assert [one["downtime_s"] for one in job["attempts"]] == [near(minutes) for minutes in down]
    assert [one["restart"] for one in job["attempts"]] == [None, "succeeded", "failed"]
    assert (job["restarts"], job["restarts_failed"]) == (2, 1)

    both = (sum(trained) + OTHER_MINUTES) / (sum(trained) + OTHER_MINUTES + sum(down))
    assert made["training"]["efficiency"] == pytest.approx(both, abs=2e-4)
    assert (made["training"]["restarts"], made["training"]["restarts_failed"]) == (2, 1)
    text = holdfast("report", "--journal", recording, "--job", str(KEY), "--format", "md")
    assert f"{100 * expected:.1f} %: 2 h 21 min trained, 59 min 00 s down; 1 of 2 restarts failed." in text
    assert f"{100 * expected:.1f}" == "70.5", "the times of PLAN are chosen for the guide's percentage"


@pytest.mark.walk("W3.4")
def test_the_point_that_a_restart_has_to_reach_is_the_policys(recording: Path, tmp_path: Path) -> None:
    """With `proof = "first_step"` the cancelled attempt is a successful restart; its seconds stay what they were."""
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY.replace("[limits]", 'proof = "first_step"\n[limits]'), encoding="utf-8")
    usual, other = (report(recording, *words)["training"] for words in ((), ("--policy", policy)))
    assert (usual["restarts_failed"], other["restarts_failed"]) == (1, 0)
    assert (usual["trained_s"], usual["downtime_s"]) == pytest.approx((other["trained_s"], other["downtime_s"]))


@pytest.mark.walk("W3.4")
def test_a_jobs_owner_and_the_page_show_the_same(recording: Path, tmp_path: Path) -> None:
    """`holdfast job`, the job's page and the efficiency page over HTTP, of a controller that goes on with this journal."""
    trained, down = by_hand()
    share = f"{100 * sum(trained) / (sum(trained) + sum(down)):.1f} %"
    told = holdfast("job", str(KEY), "--journal", recording)
    assert f"training-time efficiency {share}" in told
    assert re.search(r"7\(2\) .*failed restart", told)
    assert json.loads(holdfast("job", str(KEY), "--journal", recording, "--json"))["job"]["training"]["restarts"] == 2

    async def look() -> None:
        async with (
            served(tmp_path, jobs=(), nodes=(), journal=f"sqlite:///{recording}", watch=False) as desk,
            desk.browser(Role.VIEWER) as http,
        ):
            page = plain((await http.get(f"/jobs/{KEY}")).text)
            assert f"training-time efficiency {share}: 2 h 21 min trained, 59 min 00 s down; 1 of 2" in page
            assert ", failed restart 32 min 00 s" in page
            async with asyncio.timeout(60):
                while "Jobs that lost most time" not in (page := plain((await http.get("/efficiency?days=7")).text)):
                    await asyncio.sleep(0.1)
            assert re.search(rf" {KEY} [\d.]+ % {re.escape(share)} ", page), page
            attempts = (await http.get(f"/v1/jobs/{KEY}/attempts")).json()
            assert [one["attempt"].get("durable_step") for one in attempts] == [3000, 5000, None]

    run(look)


def plain(html: str) -> str:
    """The text of a page."""
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


TRAINING = """\
import json, os, signal, sys, time
from pathlib import Path

folder, crashes = Path(sys.argv[1]), [int(word) for word in sys.argv[2].split(",")]
newest, attempt = folder / "newest", int(os.environ["HOLDFAST_ATTEMPT"])
step = int(newest.read_text()) if newest.exists() else 0


def told(what):
    with (folder / "times.jsonl").open("a") as file:
        file.write(json.dumps({"what": what, "attempt": attempt, "step": step, "at": time.time()}) + "\\n")


time.sleep(0.3)  # loads its checkpoint
while step < 400:
    time.sleep(0.1 if attempt < len(crashes) else 1.0)
    step += 1
    told("step")
    print(f"step {step}/400 | loss {4 / (1 + step / 20):.5f} | acc {step / (step + 30):.5f}", flush=True)
    if step % 10 == 0:
        newest.write_text(str(step))
        told("saved")
        print(f"successfully saved checkpoint at iteration {step} to {folder}", flush=True)
    if attempt < len(crashes) and step == crashes[attempt]:
        os.kill(os.getpid(), signal.SIGSEGV)
"""


@pytest.mark.cluster
@pytest.mark.walk("W3.4")
@pytest.mark.walk("W5.4")
@pytest.mark.timeout(150)
def test_a_real_run_gives_the_figures_that_its_own_clock_gives(tmp_path: Path) -> None:
    """Two crashes, two restarts, the second cancelled by its user; what the script wrote down is the measure.

    Loss and accuracy that it printed stand in the report as they were before and after the recovery.
    """
    script, times = tmp_path / "train.py", tmp_path / "times.jsonl"
    script.write_text(TRAINING, encoding="utf-8")
    argv = [sys.executable, "-m", "holdfast.cli.main", "run", "--job-dir", str(tmp_path / "job"), "--"]
    with (tmp_path / "out").open("w") as out:
        running = subprocess.Popen(
            [*argv, sys.executable, str(script), str(tmp_path), "57,97"], stdout=out, stderr=subprocess.STDOUT
        )
        try:
            wait_until(lambda: told(times, 2, "step"), "third attempt", limit_s=90, logs=(tmp_path / "out",))
            running.send_signal(signal.SIGTERM)
            running.wait(timeout=60)
        finally:
            running.kill()
            running.wait()
    cancelled_at = time.time()
    made = report(tmp_path / "job" / "journal.db")
    (job,) = made["jobs"]
    for number, kept in enumerate(job["attempts"][:2]):  # what it holds was read a moment after it was printed
        steps, saves = told(times, number, "step"), told(times, number, "saved")
        assert steps[0] - 0.01 <= kept["first_step_at"] <= steps[0] + LATE_S
        assert saves[-1] - 0.01 <= kept["durable_at"] <= saves[-1] + LATE_S
        assert saves[-1] < kept["ended_at"]
    zero, one, two = job["attempts"]
    assert told(times, 2, "step")[-1] - 0.01 <= two["ended_at"] <= cancelled_at
    assert [time["trained_s"] for time in job["training"]["attempts"]] == pytest.approx(
        [zero["durable_at"] - zero["first_step_at"], one["durable_at"] - one["first_step_at"], 0.0]
    )
    assert [time["downtime_s"] for time in job["training"]["attempts"]] == pytest.approx(
        [0.0, one["first_step_at"] - zero["durable_at"], two["ended_at"] - one["durable_at"]]
    )
    assert [time["restart"] for time in job["training"]["attempts"]] == [None, "succeeded", "failed"]

    first = {one["figure"]: one for one in made["convergence"] if one["incident"] == made["incidents"][0]["id"]}
    for figure, value in (("training loss", lambda n: 4 / (1 + n / 20)), ("accuracy", lambda n: n / (n + 30))):
        one = first[figure]
        assert 1 <= one["first_step"] < 57
        assert 50 < one["last_step"] <= 97
        ends = sorted(value(step) for step in (one["first_step"], one["last_step"]))
        if one["twice"]:  # a line is sampled twice a second: whether one step is caught on both sides is chance
            assert one["difference"] == pytest.approx(0.0, abs=1e-9)
        assert ends[0] <= min(one["before"], one["after"]) <= max(one["before"], one["after"]) <= ends[1], one


def told(times: Path, attempt: int, what: str) -> list[float]:
    """When the script said this, in order."""
    lines = times.read_text(encoding="utf-8").splitlines() if times.exists() else []
    found = [json.loads(line) for line in lines if line.endswith("}")]
    return [one["at"] for one in found if (one["attempt"], one["what"]) == (attempt, what)]
