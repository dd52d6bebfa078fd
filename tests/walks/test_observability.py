"""W5.2: figures of GPUs, jobs, network and recovery, alerts that say what to do and where, waiting times by user.

Real here: Slurm, Holdfast's controller, agent and Slurm exporter, Prometheus, Alertmanager, a mail server. Emulated: the
GPU (Holdfast's own NVML library), SNS (moto's server, with signed requests) and Slack (a listener that takes its form).
Files are those of deploy/observability; only addresses and waiting times are changed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from email import message_from_bytes, policy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest
import yaml
from aiosmtpd.controller import Controller as MailServer
from moto.server import ThreadedMotoServer
from tests.walks.login_node import free_port

from holdfast.adapters.emulated import devices
from holdfast.adapters.emulated.faults import FAULTS, Hit
from holdfast.adapters.emulated.layout import Devices
from holdfast.lab.slurm_lab import SlurmLab
from slurm_keeper import Kept, keeping

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

REPO = Path(__file__).parents[2]
SHIPPED = REPO / "deploy" / "observability"
DOCS = "https://docs.example.org/holdfast"
LIMIT_S = 120.0
KEYS = {"access_key": "AKIAEXAMPLEEXAMPLE12", "secret_key": "secretsecretsecretsecretsecretsecretsecr"}


def program(*names: str) -> str:
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip(f"left out: {names[0]} is not installed (apt-get install prometheus prometheus-alertmanager)")
    return found


def until(holds: Callable[[], Any], what: str, limit_s: float = LIMIT_S) -> Any:
    """Wait until it is so; returns what it gave."""
    deadline = time.monotonic() + limit_s
    while True:
        with contextlib.suppress(httpx.HTTPError):
            found = holds()
            if found:
                return found
        assert time.monotonic() < deadline, f"not within {limit_s:g} s: {what}"
        time.sleep(0.1)


@contextlib.contextmanager
def running(argv: list[str], log: Path, env: dict[str, str] | None = None) -> Iterator[Path]:
    """A program until the end of the test; gives its log."""
    with log.open("wb") as file:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=env)
    try:
        yield log
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def prometheus(folder: Path, config: dict[str, Any], *more: str) -> Iterator[httpx.Client]:
    """A real Prometheus with this configuration; gives a client once it is ready."""
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    port = free_port()
    argv = [program("prometheus"), f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}", *more]
    with (
        running([*argv, f"--web.listen-address=127.0.0.1:{port}"], folder / "prometheus.log"),
        httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as http,
    ):
        until(lambda: http.get("/-/ready").is_success, "Prometheus is ready")
        yield http


def asked(http: httpx.Client, expression: str, at: float | None = None) -> dict[str, float]:
    """Answer of a query: the labels' values, joined -> value."""
    answer = http.get("/api/v1/query", params={"query": expression, **({"time": at} if at else {})})
    assert answer.status_code == 200, f"{expression}: {answer.text}"
    return {" ".join(one["metric"].values()): float(one["value"][1]) for one in answer.json()["data"]["result"]}


def panel(title: str, **words: str) -> str:
    """A panel's question as Grafana would ask it with these values of its variables."""
    board = json.loads((SHIPPED / "grafana/dashboards/slurm-jobs.json").read_text())
    (found,) = [one["targets"][0]["expr"] for one in board["panels"] if one["title"] == title]
    for name, value in words.items():
        found = found.replace(f"${{{name}}}", value).replace(f"${name}", value)
    return found


class Received:
    """What each receiver was sent: mails, Slack's form, other webhooks' JSON."""

    def __init__(self) -> None:
        self.mails: list[str] = []
        self.posts: dict[str, list[dict[str, Any]]] = {"/pager": [], "/chat": [], "/services/T0/B0/key": []}

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802 - aiosmtpd's name
        mail = message_from_bytes(envelope.content, policy=policy.default)
        body = mail.get_body(("plain", "html"))
        assert body is not None
        self.mails.append(f"To: {mail['To']}\nSubject: {mail['Subject']}\n{body.get_content()}")
        return "250 taken"

    def of(self, place: str, alert: str) -> list[dict[str, Any]]:
        """Firing alerts of this name among the webhook's."""
        told = [one for post in self.posts[place] for one in post["alerts"]]
        return [one for one in told if one["labels"]["alertname"] == alert and one["status"] == "firing"]

    def slack(self, alert: str) -> list[dict[str, Any]]:
        """Attachments of Slack's messages about it."""
        told = [one for post in self.posts["/services/T0/B0/key"] for one in post["attachments"]]
        return [one for one in told if alert in one["title"] and "firing" in one["title"]]


@contextlib.contextmanager
def receivers(folder: Path) -> Iterator[tuple[Received, dict[str, Any], Any]]:
    """Servers of every kind; gives what they got, Alertmanager's shipped configuration with their addresses, SNS's queue."""
    got = Received()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.posts[self.path].append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_words: object) -> None:
            pass

    web = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=web.serve_forever)
    thread.start()
    mail = MailServer(got, hostname="127.0.0.1", port=free_port())
    mail.start()
    aws = ThreadedMotoServer(ip_address="127.0.0.1", port=free_port(), verbose=False)
    aws.start()
    try:
        sns_at = "http://{}:{}".format(*aws.get_host_and_port())
        made = {"region_name": "eu-west-1", "endpoint_url": sns_at, "aws_access_key_id": KEYS["access_key"],
                "aws_secret_access_key": KEYS["secret_key"]}  # fmt: skip
        sns, sqs = boto3.client("sns", **made), boto3.client("sqs", **made)
        topic, queue = sns.create_topic(Name="oncall")["TopicArn"], sqs.create_queue(QueueName="seen")["QueueUrl"]
        arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn)
        config = yaml.safe_load((SHIPPED / "alertmanager/alertmanager.yml").read_text())
        config["route"] |= {"group_wait": "1s", "group_interval": "1s"}
        config["global"] |= {"smtp_smarthost": f"127.0.0.1:{mail.port}", "smtp_require_tls": False}
        pager, chat = config["receivers"]
        for receiver in (pager, chat):
            hook = receiver["webhook_configs"][0]
            hook["url"] = hook["url"].replace(":9094", f":{web.server_port}")
        pager["sns_configs"][0] |= {"topic_arn": topic, "api_url": sns_at, "sigv4": {"region": "eu-west-1", **KEYS}}
        (folder / "slack.url").write_text(f"http://127.0.0.1:{web.server_port}/services/T0/B0/key")
        chat["slack_configs"][0]["api_url_file"] = str(folder / "slack.url")

        def published() -> str:
            taken = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, VisibilityTimeout=0)
            return "\n".join(json.loads(one["Body"])["Message"] for one in taken.get("Messages", []))

        yield got, config, published
    finally:
        aws.stop()
        mail.stop()
        web.shutdown()
        web.server_close()
        thread.join(30)


def quick_rules(folder: Path) -> str:
    """The shipped rules with seconds in place of minutes; promtool's tests hold the true times."""
    text = (SHIPPED / "prometheus/holdfast.rules.yml").read_text()
    for wanted, quick in {
        r"interval: (30s|5m)": "interval: 1s", r"for: \d+m": "for: 1s", r"\[1h:1m\]": "[1h:1s]", r"> 1800\n": "> 4\n",
    }.items():  # fmt: skip
        text, count = re.subn(wanted, quick, text)
        assert count, wanted
    (folder / "rules.yml").write_text(text)
    return str(folder / "rules.yml")


@contextlib.contextmanager
def hot_agent(kept: Kept, folder: Path, node: str) -> Iterator[str]:
    """A real agent whose emulated GPU is at 91 C; gives the address of its figures."""
    state = devices.prepare(folder / "dev", [("0000:53:00", "GPU-53")], machine="m", booted="b")
    with Devices(state) as found:
        FAULTS["temperature"].apply(found, Hit(gpu=0, value=91))
    (folder / "kmsg").touch()
    assert kept.client is not None
    at = f"127.0.0.1:{free_port()}"
    argv = [
        sys.executable,
        "-m",
        "holdfast.cli.main",
        "agent",
        "--controller",
        str(kept.client.base_url),
        "--node",
        node,
    ]
    argv += ["--token-file", str(kept.folder / "controller/agent-token"), "--kernel-log", str(folder / "kmsg")]
    argv += ["--state-dir", str(folder / "agent"), "--metrics", at, "--beat-s", "0.5"]
    with running(argv, folder / "agent.log", devices.environment(folder / "dev", dict(os.environ))):
        yield at


@contextlib.contextmanager
def slurm_exporter(lab: SlurmLab, folder: Path) -> Iterator[str]:
    at = f"127.0.0.1:{free_port()}"
    argv = [sys.executable, "-m", "holdfast.cli.main", "slurm-exporter", "--listen", at, "--conf", str(lab.facts.conf)]
    with running(argv, folder / "exporter.log", lab.env()):
        yield at


@pytest.mark.walk("W5.2")
def test_alerts_reach_mail_chat_and_topic_with_advice_and_links(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    """A hot GPU, a job that waits, a node that is lost: told by the receivers of the severity, with what to do and where.

    A test notice goes the same way. Each runbook link ends at a heading of docs/alerts.md, each page link opens. The user
    who waited stands in the histogram of Slurm Jobs with the time that Slurm itself says.
    """
    amtool, alertmanager = program("amtool"), program("prometheus-alertmanager", "alertmanager")
    tmp_path.chmod(0o755)
    with (
        keeping(slurm_lab, tmp_path / "controller") as kept,
        receivers(tmp_path) as (got, routing, published),
        hot_agent(kept, tmp_path, "node01") as agent_at,
        slurm_exporter(slurm_lab, tmp_path) as slurm_at,
    ):
        assert kept.client is not None
        site = str(kept.client.base_url).rstrip("/")
        (tmp_path / "alertmanager.yml").write_text(yaml.safe_dump(routing))
        alerts_at = f"127.0.0.1:{free_port()}"
        argv = [alertmanager, f"--config.file={tmp_path / 'alertmanager.yml'}", f"--storage.path={tmp_path / 'am'}"]
        argv += [f"--web.listen-address={alerts_at}", "--cluster.listen-address="]
        config = yaml.safe_load((SHIPPED / "prometheus/prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s",
                            "external_labels": {"holdfast": site, "holdfast_docs": DOCS}}  # fmt: skip
        config["rule_files"] = [quick_rules(tmp_path)]
        config["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] = [alerts_at]
        targets = {"holdfast-controller": (site.removeprefix("http://"), ""), "slurm": (slurm_at, ""),
                   "holdfast-agent": (agent_at, "node01:9471")}  # fmt: skip
        config["scrape_configs"] = [
            {"job_name": job, "static_configs": [{"targets": [at], "labels": {"instance": name} if name else {}}]}
            for job, (at, name) in targets.items()
        ]
        with running(argv, tmp_path / "alertmanager.log"), prometheus(tmp_path, config) as http:
            until(lambda: asked(http, 'holdfast_nodes{state="healthy"} == 8'), "8 nodes are counted")
            until(lambda: asked(http, "count(up == 1) == 3"), "controller, agent and Slurm are scraped")
            notice = [
                amtool,
                f"--alertmanager.url=http://{alerts_at}",
                "alert",
                "add",
                "TestNotice",
                "severity=critical",
            ]
            notice += ["--annotation=summary=Test notice", "--annotation=action=Nothing to do"]
            until(lambda: httpx.get(f"http://{alerts_at}/-/ready", trust_env=False).is_success, "Alertmanager is ready")
            subprocess.run(notice, check=True, timeout=60)
            with _faults(slurm_lab, http, got) as waited:
                told = _told(got, published)
                _links_lead_somewhere(told, kept)
                _waits_are_slurms(http, *waited)


@contextlib.contextmanager
def _faults(lab: SlurmLab, http: httpx.Client, got: Received) -> Iterator[tuple[str, float]]:
    """A node is lost; one user's job waits for another's, and runs then. Gives the user and the seconds of Slurm."""
    whole = ["--exclusive", "--nodes=7", "--exclude=node08", "--output=/dev/null", "--chdir=/"]
    first = lab.sbatch([*whole, "--wrap", "sleep 600"])
    second = lab.sbatch([*whole, *(["--uid=nobody"] if os.geteuid() == 0 else []), "--wrap", "sleep 600"])
    user = lab.job(second)["UserId"].partition("(")[0]
    try:
        lab.crash("node08")
        until(lambda: got.of("/chat", "JobPendingLong"), "the chat heard of the job that waits")
        until(lambda: asked(http, f'slurm_job_wait_seconds_count{{user="{user}"}}'), "the user has a series")
        lab.run(["scancel", first])
        facts = lab.until_job(second, "RUNNING", limit_s=LIMIT_S)
        begun, queued = (
            time.mktime(time.strptime(facts[name], "%Y-%m-%dT%H:%M:%S")) for name in ("StartTime", "SubmitTime")
        )
        yield user, begun - queued
    finally:
        lab.run(["scancel", first, second])


def _told(got: Received, published: Callable[[], str]) -> list[dict[str, Any]]:
    """What came where: critical ones by pager, mail and SNS, the others in the chat. Returns the alerts' annotations."""
    until(lambda: got.of("/pager", "NodeCountDrop") and got.of("/pager", "TestNotice"), "the pager heard")
    until(lambda: got.of("/chat", "GpuTooHot"), "the chat heard")
    until(lambda: got.slack("GpuTooHot") and got.slack("JobPendingLong"), "Slack heard")
    places = {"NodeCountDrop": "/pager", "GpuTooHot": "/chat", "JobPendingLong": "/chat"}
    drop, hot, pending = told = [got.of(place, alert)[0]["annotations"] for alert, place in places.items()]
    assert hot["summary"] == "GPU 0 of node01:9471 is at 91 C for 5 minutes"
    assert pending["summary"].startswith("A job of partition main waits for ")
    # The node with the hot GPU is not counted as healthy either, once that is known.
    assert re.fullmatch("Healthy nodes of main fell to [67] within an hour", drop["summary"])
    for alert, one in {"NodeCountDrop": drop, "TestNotice": {"summary": "Test notice"}}.items():
        mail = until(lambda a=alert: [text for text in got.mails if a in text.split("\n")[1]], f"a mail about {alert}")[
            0
        ]
        assert mail.startswith("To: oncall@example.org\n")
        topic = until(lambda s=one["summary"]: (text := published()) and s in text and text, f"SNS has {alert}")
        for text in one.values():
            assert text in mail.replace("&#39;", "'"), mail
            assert text in topic, topic
    for alert, one in {"GpuTooHot": hot, "JobPendingLong": pending}.items():
        slack = got.slack(alert)[0]
        assert slack["title_link"] == one["page"]
        assert all(text in slack["text"] for text in one.values()), slack
    assert [one for one in got.mails if "GpuTooHot" in one] == [], "a warning calls nobody"
    assert "holdfast" not in got.of("/chat", "GpuTooHot")[0]["labels"], "the site's addresses are in the links alone"
    print(json.dumps(told, indent=1), got.slack("GpuTooHot")[0], sep="\n")
    return told


def _links_lead_somewhere(told: list[dict[str, Any]], kept: Kept) -> None:
    """The runbook is a heading of the page; the page opens for somebody who has signed in, and shows what it is about."""
    headings = re.findall(r"^## (.*)$", (REPO / "docs/alerts.md").read_text(), re.MULTILINE)
    assert kept.client is not None
    token = (kept.folder / "controller" / "token").read_text().strip()
    kept.client.post("/login", data={"token": token, "next": "/"})
    for one, shown in zip(told, ("node08", "node01", "jobs"), strict=True):
        page, _, anchor = one["runbook_url"].partition("#")
        assert page == f"{DOCS}/alerts.md"
        assert anchor in {heading.lower() for heading in headings}
        opened = kept.client.get(one["page"])
        assert opened.status_code == 200, one["page"]
        assert shown in opened.text.lower()


def _waits_are_slurms(http: httpx.Client, user: str, seconds: float) -> None:
    """The dashboard's two questions, over the last hour: the histogram's bucket and the user's median."""
    histogram = panel("Jobs by time waited", user=user, __range="1h")
    bounds = until(lambda: (found := asked(http, histogram)).get("+Inf", 0) > 0 and found, "the wait is counted")
    ends = {float(bound): count for bound, count in bounds.items() if bound != "+Inf"}
    true = min(bound for bound in ends if bound >= seconds)
    assert min(bound for bound, count in ends.items() if count > 0) == true, (seconds, bounds)
    medians = asked(http, panel("Time waited by user", user=".*", __range="1h"))
    assert 0 < medians[user] <= true


@pytest.mark.walk("W5.2")
def test_waiting_times_by_user_from_an_hour_to_thirty_days(tmp_path: Path) -> None:
    """A Prometheus with 30 days of history answers both questions of the dashboard over every range that it offers.

    Compared with a count by hand of the jobs in the range.
    """
    promtool = program("promtool")
    now = time.time() // 300 * 300
    bounds = (600.0, 3600.0, 86400.0, 2592000.0)
    jobs = {  # days ago -> (user, seconds waited)
        "mei": [(0.02, 300.0), (0.5, 2000.0), (5.0, 50_000.0), (20.0, 500_000.0)],
        "ken": [(1.5, 300.0), (29.0, 300.0), (29.5, 2000.0)],
    }  # fmt: skip
    lines = ["# TYPE wait gauge"]
    for user, waits in jobs.items():
        for bound in (*bounds, float("inf")):
            label = "+Inf" if bound == float("inf") else str(bound)
            for step in range(30 * 288 + 1, -1, -1):
                at = now - step * 300
                count = sum(seconds <= bound and now - days * 86400 <= at for days, seconds in waits)
                lines.append(f'wait{{user="{user}",le="{label}"}} {count} {at:.0f}')
    text = "\n".join(lines).replace("wait", "holdfast:slurm_job_wait_seconds_bucket:5m") + "\n# EOF\n"
    (tmp_path / "history.txt").write_text(text)
    argv = [promtool, "tsdb", "create-blocks-from", "openmetrics", "--max-block-duration=720h", "history.txt", "data"]
    subprocess.run(argv, cwd=tmp_path, check=True, timeout=120, capture_output=True)
    with prometheus(tmp_path, {"global": {"scrape_interval": "1h"}}, "--storage.tsdb.retention.time=40d") as http:
        for words, days in {"1h": 1 / 24, "12h": 0.5, "2d": 2, "7d": 7, "30d": 30}.items():
            for user in ("mei", "ken", "mei|ken"):
                began = [
                    seconds for name in user.split("|") for ago, seconds in jobs[name] if ago < days
                ]  # fmt: skip
                found = asked(http, panel("Jobs by time waited", user=user, __range=words), now + 1)
                for bound in bounds:
                    by_hand = sum(seconds <= bound for seconds in began)
                    assert found.get(str(bound), 0.0) == pytest.approx(by_hand, rel=0.1), (words, user, found)
        medians = asked(http, panel("Time waited by user", user=".*", __range="30d"), now + 1)
    assert medians["ken"] <= 600.0 < medians["mei"] <= 86400.0
