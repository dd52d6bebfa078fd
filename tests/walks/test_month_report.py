"""W5.4: a month's report with convergence before and after each recovery, in English and Japanese, in every form.

A job that trained for two months, and failed three times, is recorded by the real engine and the real journal, whose
series store has thinned what is old. What is expected is worked out from the plan alone.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.cockpit.history import Recorded
from tests.decide.play import KEY, S
from tests.walks.login_node import holdfast

from holdfast.adapters.journal import open_journal
from holdfast.adapters.policy_files import packaged_presets
from holdfast.decide.engine import Engine
from holdfast.model import events as e
from holdfast.model.policy_toml import parse_policy
from holdfast.ports import Sample

BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
POLICY = "[slo]\ndetect_s = 30.0\nrecover_s = 60.0\nperformance_loss = 5.0\n"
HOUR, DAY = 3600.0, 86400.0
THIS = datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
LAST = (THIS - timedelta(days=1)).replace(day=1)
BEFORE = (LAST - timedelta(days=1)).replace(day=1)
MONTHS = tuple(f"{month:%Y-%m}" for month in (BEFORE, LAST))
BEGIN = BEFORE.timestamp() + 2 * DAY
FAULTS = (BEFORE.timestamp() + 11.25 * DAY, LAST.timestamp() + 4.25 * DAY, LAST.timestamp() + 19.25 * DAY)
"""One in the first month, two in the second."""
END = LAST.timestamp() + 24 * DAY
UNSAVED_S, DETECT_S, STOP_S, START_S, AGAIN_S = 600.0, 10.0, 15.0, 30.0, 120.0
"""The last save before each fault; then seconds after it: seen, stopped, started anew, first new step."""
PACE = (1.0, 1.0, 1.0, 1.25)
"""Seconds for a step in each attempt: after its last recovery the job is a fifth slower."""
WRONG = (0.0, 0.0, 0.0, 0.5)
"""What is added to the loss, and taken from the accuracy: after its last recovery the job does not converge as before."""
HOURS_TOLD = 4
"""On either side of a fault."""


def loss(step: float, attempt: int) -> float:
    return 3.0 - step / 1e7 + WRONG[attempt]


def accuracy(step: float, attempt: int) -> float:
    return 0.25 + step / 1e7 - WRONG[attempt] / 2


def begins() -> list[tuple[float, int]]:
    """When each attempt completed its first step, and which one."""
    found, step = [(BEGIN + 60.0, 1)], 1.0
    for number, fault in enumerate(FAULTS):
        first = found[-1]
        step = int(first[1] + (fault - UNSAVED_S - first[0]) / PACE[number])
        found.append((fault + AGAIN_S, int(step) + 1))
    return found


def step_at(attempt: int, at: float) -> int:
    first = begins()[attempt]
    return int(first[1] + (at - first[0]) / PACE[attempt])


def history() -> tuple[Recorded, list[Sample]]:
    """Events and series of the job, in order of time."""
    play = Recorded()
    play.engine = Engine(parse_policy(POLICY, "", packaged_presets()), scope="cluster", presets=packaged_presets())
    play.now = BEGIN - 60.0
    play.do(e.PolicyLoaded, toml=POLICY, file="policy.toml")
    play.nodes(gpus=8)
    play.job(name="gpt-7b", user="mei")
    play.attach()
    play.now = BEGIN
    play.start(0)
    play.now = BEGIN + 60.0
    play.first_step(0, 1)
    samples: list[Sample] = []
    for number, fault in enumerate(FAULTS):
        samples += told(number, fault - HOURS_TOLD * HOUR, fault)
        play.now = fault - UNSAVED_S
        play.checkpoint(number, step_at(number, play.now))
        saved = step_at(number, fault - UNSAVED_S)
        play.now = fault - 1.0
        play.step(number, step_at(number, play.now))
        play.now = fault + DETECT_S
        play.crash(number, seen_at=fault)
        play.now = fault + STOP_S
        play.ended(number)
        if any(timer.startswith("settle:") for timer in play.engine.state.timers):
            play.settle()
        play.now = fault + START_S
        play.start(number + 1, in_place=number + 1)
        play.now = fault + AGAIN_S
        play.first_step(number + 1, saved + 1, resumed_from=saved)
        samples += told(number + 1, fault + AGAIN_S, fault + HOURS_TOLD * HOUR)
        play.now = fault + 1800.0
        play.checkpoint(number + 1, step_at(number + 1, play.now))
    play.now = END
    play.step(len(FAULTS), step_at(len(FAULTS), END))
    play.ended(len(FAULTS), signal=None, exit_code=0, stopped=False)
    play.job(state=S.COMPLETED, nodes=())
    return play, samples


def told(attempt: int, begin: float, end: float) -> list[Sample]:
    """What rank 0 says: its step, loss and tokens every 20 s, an accuracy after an evaluation every five minutes."""
    found = []
    subject = f"job:{KEY}({attempt})/rank:0"
    for tick in range(int((end - begin) / 20.0)):
        at = begin + 20.0 * tick
        step = step_at(attempt, at)
        found += [Sample("step", subject, at, float(step)), Sample("loss", subject, at, loss(step, attempt))]
        found.append(Sample("tokens", f"job:{KEY}({attempt})", at, 4096.0 * step))
        if tick % 15 == 7:
            found.append(Sample("accuracy", subject, at, accuracy(step, attempt)))
    return found


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("months") / "journal.db"
    play, samples = history()

    async def write() -> None:
        kept = open_journal(f"sqlite:///{path}")
        await kept.acquire("controller:months", lease_s=60.0, now=play.now)
        await kept.append(play.entries)
        for start in range(0, len(samples), 1000):
            await kept.add_samples(samples[start : start + 1000])
        assert len(await kept.samples("step", f"job:{KEY}*")) < len(samples) / 5, "what is old was thinned"
        await kept.release()
        await kept.close()

    asyncio.run(write())
    return path


def report(journal: Path, *words: str | Path) -> str:
    return holdfast("report", "--journal", journal, *words)


def of_month(journal: Path, month: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(report(journal, "--month", month, "--gpu-hour", "2", "--json"))
    return found


def inside(begin: float, end: float, month: str) -> float:
    """Seconds of a time that lie in a month."""
    since, until = (BEFORE, LAST) if month == MONTHS[0] else (LAST, THIS)
    return max(0.0, min(end, until.timestamp()) - max(begin, since.timestamp()))


@pytest.mark.walk("W5.4")
@pytest.mark.parametrize("month", MONTHS)
def test_each_month_has_its_own_figures(journal: Path, month: str) -> None:
    """Incidents, times, training-time efficiency, speed and verdicts of the month that was asked for, and no others."""
    made = of_month(journal, month)
    numbers = [number for number, fault in enumerate(FAULTS) if inside(fault, fault + 1.0, month)]
    assert made["title"] == f"Holdfast report, month {month}"
    assert [one["marks"]["fault"] for one in made["incidents"]] == [FAULTS[number] for number in numbers]
    assert made["totals"]["mttd"]["mean"] == pytest.approx(DETECT_S, abs=0.1)
    assert made["totals"]["mttr"]["mean"] == pytest.approx(AGAIN_S, abs=0.1)
    firsts = [first for first, _ in begins()]
    lasts = [*(fault - UNSAVED_S for fault in FAULTS), END]
    trained = sum(inside(first, last, month) for first, last in zip(firsts, lasts, strict=True))
    down = sum(inside(last, first, month) for last, first in zip(lasts[:-1], firsts[1:], strict=True))
    assert made["training"]["efficiency"] == pytest.approx(trained / (trained + down), abs=1e-6)
    assert made["training"]["restarts"] == len(numbers)

    slower = [100.0 * (1.0 - PACE[number] / PACE[number + 1]) for number in numbers]
    assert [one["loss_percent"] for one in made["throughput"]] == pytest.approx(slower, abs=0.5)
    verdicts = {one["objective"]: one["verdict"] for one in made["objectives"]}
    assert verdicts == {"detect": "PASS", "recover": "FAIL", "performance": "FAIL" if max(slower) > 5 else "PASS"}
    lost_h = sum(made["jobs"][0]["badput"].values()) * 4 * 8 / 3600
    assert made["fleet"]["cost"]["lost_money"] == pytest.approx(2 * lost_h)


@pytest.mark.walk("W5.4")
@pytest.mark.parametrize("month", MONTHS)
def test_convergence_before_and_after_each_recovery(journal: Path, month: str) -> None:
    """Loss and accuracy go on where they were; the recovery after which they do not is seen to."""
    made = of_month(journal, month)
    numbers = [number for number, fault in enumerate(FAULTS) if inside(fault, fault + 1.0, month)]
    for number, incident in zip(numbers, made["incidents"], strict=True):
        told = {one["figure"]: one for one in made["convergence"] if one["incident"] == incident["id"]}
        assert set(told) == {"training loss", "accuracy"}
        for figure, value in (("training loss", loss), ("accuracy", accuracy)):
            one = told[figure]
            jump = abs(value(0, number + 1) - value(0, number))
            way = abs(value(one["last_step"], 0) - value(one["first_step"], 0))
            assert one["difference"] == pytest.approx(jump, abs=way + 1e-4)
            assert way < 0.01, "the steps compared lie beside the fault"
            assert one["before"] == pytest.approx(value(step_at(number, FAULTS[number]), number), abs=0.01)


@pytest.mark.walk("W5.4")
def test_the_month_in_every_form(journal: Path, tmp_path: Path) -> None:
    """Executive summary, results, figures, proposals and cost stand in HTML, Markdown, JSON and on paper."""
    parts = (
        "Executive summary", "Objectives", "Training-time efficiency", "Downtime of each attempt",
        "Throughput before and after", "Convergence before and after", "Cost and return", "Proposals",
    )  # fmt: skip
    options = ("--month", MONTHS[1], "--gpu-hour", "2")
    text = {}
    for form in ("html", "md", "json", *(["pdf"] if BROWSER else [])):
        path = tmp_path / f"month.{form}"
        report(journal, *options, "-o", path)
        text[form] = path.read_bytes()
    page = text["html"].decode()
    assert [page.index(f">{part}</h2>") for part in parts] == sorted(page.index(f">{part}</h2>") for part in parts)
    assert page.index(">Executive summary</h2>") < page.index(">Totals</h2>")
    for plot in ("steps-1", "loss-1", "accuracy-1"):
        assert f'draw("{plot}"' in page
    markdown = text["md"].decode()
    assert all(f"## {part}\n" in markdown for part in parts)
    said = {one["about"]: one["text"] for one in json.loads(text["json"])["executive_summary"]}
    assert said["throughput"] == "At most 20.0 % slower than before (recoveries: 2)."
    assert said["training loss"].startswith("At most 0.5 away from before")
    for sentence in said.values():
        assert sentence in page.replace("&lt;", "<").replace("&#39;", "'")
    if BROWSER:
        assert text["pdf"].startswith(b"%PDF-")
        assert re.search(rb"/Type\s*/Page\b", text["pdf"])
        title = f"Holdfast report, month {MONTHS[1]}"
        assert title.encode() in text["pdf"] or title.encode("utf-16-be").hex().upper().encode() in text["pdf"]


class Seen(HTMLParser):
    """The texts of a page that somebody sees or hears."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden += tag in {"script", "style"}
        self.texts += [value for name, value in attrs if name in {"title", "aria-label", "alt"} and value]

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in {"script", "style"}

    def handle_data(self, data: str) -> None:
        if not self._hidden and data.strip():
            self.texts.append(data.strip())


NAMES = re.compile(
    r"arXiv\S*|\bA\. Kokolis.*?Clusters|Google Cloud,.*?2024|J\. T\. Daly.*?2006|NVIDIA, Mission Control.*?\)"  # sources
    r"|Llama Team.*|Llama 3 405B pre-training|Meta RSC-\d"
    r"|https?://\S+|docs/reports\.md|`[^`]*`|--\w[\w-]*|\[slo\]|\w+[-_.]\w[\w.-]*|operator\.\*"  # rules, options, keys
    r"|Holdfast|Prometheus|Google|Meta|Young|Mission Control|IEC|sqrt|exp|badput|MTT[DRP]|MTBF|ETTR|GPU|UTC|JST"
    r"|(tokens|samples|steps)/s|\d min|JavaScript|URL|Asia/Tokyo"
)
"""Names of things, of papers and of functions, and units: written alike in every language."""
OF_THE_JOB = {"gpt-7b", "mei", "n1", "n2", "n3", "n4", "died of signal 11"}
"""Names in the recording, and what a rule found in the job's output."""


@pytest.mark.walk("W5.4")
@pytest.mark.parametrize("kind", ["full", "fleet", "summary"])
def test_nothing_of_ours_stays_english_in_japanese(journal: Path, kind: str, tmp_path: Path) -> None:
    """Headings, sentences, labels, definitions and the plots' words; what is left are names, sources and log lines."""
    options = ("--month", MONTHS[1], "--kind", kind, "--language", "ja", "--zone", "Asia/Tokyo", "--gpu-hour", "2")
    report(journal, *options, "-o", tmp_path / "r.html")
    report(journal, *options, "-o", tmp_path / "r.md")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    reader = Seen()
    reader.feed(page)
    texts = reader.texts + (tmp_path / "r.md").read_text(encoding="utf-8").splitlines()
    for found in re.finditer(r'draw\("\w+-\d+", ', page):
        figure, _ = json.JSONDecoder().raw_decode(page, found.end())
        texts += [figure["layout"][axis]["title"]["text"] for axis in ("xaxis", "yaxis")]
        texts += [re.sub(r"%\{[^}]*\}|<[^>]*>", " ", one["hovertemplate"]) for one in figure["data"]]
        texts += [one["name"] for one in figure["data"]]
    assert any("月次" in text for text in texts)
    for text in texts:
        left = text.replace("\\", "")
        for name in OF_THE_JOB:
            left = left.replace(name, "")
        assert not re.findall(r"[A-Za-z]{3,}", NAMES.sub(" ", left)), text


def test_a_month_that_is_none_is_refused_in_one_sentence(journal: Path) -> None:
    """The place and the fix."""
    for words, said in (
        (("--month", "2026-13"), '--month "2026-13" is not a month: write year and month, such as 2026-11'),
        (("--month", MONTHS[0], "--last", "3d"), "--last and --month name two spans: give one of them"),
        (("--month", "2999-01"), "--month 2999-01 has not begun yet"),
    ):
        argv = [sys.executable, "-m", "holdfast.cli.main", "report", "--journal", str(journal), *words]
        ran = subprocess.run(argv, capture_output=True, text=True, timeout=60)
        assert (ran.returncode, ran.stderr) == (2, f"holdfast: {said}\n")
