"""Which pods' logs are read, what a check pod said, and which pods hear of a notice: pure."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from holdfast.adapters.catalogue_files import read_catalogue, read_matcher
from holdfast.adapters.kubernetes.check_pod import body_of, pod_name, summed_up, template_place
from holdfast.adapters.kubernetes.notices import pods_to_tell
from holdfast.adapters.kubernetes.objects import KINDS, Pod, Workload
from holdfast.adapters.kubernetes.pod_logs import failed, findings, has_launcher
from holdfast.errors import ConfigError
from holdfast.model.cluster import JobKey
from holdfast.model.orders import Notify, ValidateNode


def pod(name: str, code: int | None, *, ago_s: float = 5.0, node: str = "n1") -> Pod:
    at = datetime.fromtimestamp(time.time() - ago_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    state: dict[str, Any] = {} if code is None else {"terminated": {"exitCode": code, "finishedAt": at}}
    phase = "Running" if code is None else "Failed" if code else "Succeeded"
    status = {"phase": phase, "containerStatuses": [{"name": "main", "state": state}]}
    about = {"name": name, "namespace": "default", "uid": f"u-{name}"}
    return msgspec.convert({"metadata": about, "spec": {"nodeName": node}, "status": status}, Pod)


def job(command: list[str], **container: Any) -> Workload:
    spec = {"template": {"spec": {"containers": [{"name": "main", "command": command, **container}]}}}
    manifest = {"metadata": {"name": "j", "namespace": "default", "uid": "u"}, "spec": spec}
    return Workload(kind=KINDS["Job"], version="v1", manifest=manifest)


def test_those_that_ended_by_themselves_are_read_first_and_history_is_left():
    """The one that began it comes before those that were ended because of it; what is long over is not read again."""
    pods = [pod("a", 137), pod("b", 0), pod("c", 1), pod("d", None), pod("e", 1, ago_s=3600.0), pod("f", 143)]
    assert [one.metadata.name for one in failed(pods)] == ["c", "a", "f"]


@pytest.mark.parametrize(
    ("found", "launcher"),
    [
        (job(["holdfast", "run", "--", "python", "train.py"]), True),
        (job(["/opt/venv/bin/holdfast", "run", "train.py"]), True),
        (job(["python", "train.py"], env=[{"name": "HOLDFAST_JOB_ID", "value": "x"}]), True),
        (job(["torchrun", "train.py"]), False),
        (job(["holdfast", "explain", "x"]), False),
        (job(["sh", "run"], args=["holdfast"]), False),
    ],
)
def test_a_launcher_reads_its_ranks_itself(found: Workload, launcher: bool):
    """By its command, or by the variable that only a launcher needs."""
    assert has_launcher(found) is launcher


def test_a_pods_log_gives_the_same_findings_to_whoever_reads_it():
    """Ids follow from pod and place, so that two controllers that read it tell of one finding; colours and junk do no harm."""
    matcher, key = read_matcher(read_catalogue()), JobKey("c", "default.job.j")
    text = b"\x1b[31mstep 1\xff\n" + b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 3\n"
    first = findings(matcher, text, key, 2, pod("a", 1), "a/main", 1000.0)
    again = findings(matcher, text, key, 2, pod("a", 1), "a/main", 2000.0)
    assert [one.id for one in first] == [one.id for one in again]
    (seen,) = [one.finding for one in first if one.finding.rule == "torch.cuda.oom"]
    assert (seen.job, seen.attempt, seen.place.node, seen.evidence[0].file) == (key, 2, "n1", "a/main")
    assert findings(matcher, b"", key, 2, pod("a", 1), "a/main", 1.0) == []


def test_the_pods_that_a_notice_is_about():
    """Those on its node; else those that failed; else the first: never all of a thousand."""
    pods = [pod(f"p{number:03}", None, node=f"n{number % 4}") for number in range(100)]
    words = {"id": "n", "cause": 1, "topic": "t", "title": "it restarts"}
    assert {one.spec.node_name for one in pods_to_tell(Notify(**words, node="n2"), pods)} == {"n2"}
    assert len(pods_to_tell(Notify(**words, node="n2"), pods)) == 8
    assert [one.metadata.name for one in pods_to_tell(Notify(**words), pods)] == ["p000"]
    assert [one.metadata.name for one in pods_to_tell(Notify(**words), [*pods, pod("bad", 1)])] == ["bad"]
    assert pods_to_tell(Notify(**words), []) == []


def test_a_check_pod_is_the_templates_bound_to_the_node_and_one_for_an_order():
    """Past the scheduler, never started twice; the same order names the same pod."""
    order = ValidateNode(id="ic1.4", cause=1, node="ip-10-0-0-1.ec2.internal")
    template = {"template": {"metadata": {"labels": {"a": "b"}}, "spec": {"restartPolicy": "Always", "containers": []}}}
    made = body_of(template, order)
    assert (made["spec"]["nodeName"], made["spec"]["restartPolicy"]) == (order.node, "Never")
    assert made["metadata"]["name"] == pod_name(order) == pod_name(order)
    assert pod_name(order) != pod_name(ValidateNode(id="ic1.5", cause=1, node=order.node))
    assert template["template"]["spec"]["restartPolicy"] == "Always"
    assert template_place("holdfast/holdfast-check") == ("holdfast", "holdfast-check")
    for wrong in ("holdfast-check", "a/b/c", "/x", "x/"):
        with pytest.raises(ConfigError, match="write NAMESPACE/NAME"):
            template_place(wrong)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"checks": [{"check": "gpu-count", "status": "critical", "detail": "7 of 8"}]}', "gpu-count: 7 of 8"),
        ('{"checks": [{"check": "a", "status": "ok"}, {"check": "b", "status": "warning"}]}', "2 health checks passed"),
        ("Traceback\nValueError: x\n\n", "ValueError: x"),
        ("", ""),
        ('{"checks": 7}', '{"checks": 7}'),
    ],
)
def test_what_a_check_pod_wrote_is_summed_up(text: str, words: str):
    """Its own form where it is that, the last line of anything else."""
    assert summed_up(text) == words
