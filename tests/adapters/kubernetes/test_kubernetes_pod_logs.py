"""Which pods' logs are read, what a check pod said, and which pods hear of a notice: pure."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Any, cast

import msgspec
import pytest

from holdfast.adapters.catalogue_files import read_catalogue, read_matcher
from holdfast.adapters.clock import SystemClock
from holdfast.adapters.kubernetes.api import ApiError
from holdfast.adapters.kubernetes.check_pod import (
    CHECKED,
    CheckPods,
    body_of,
    judged,
    pod_name,
    read_form,
    summed_up,
    template_place,
)
from holdfast.adapters.kubernetes.looks import Looks
from holdfast.adapters.kubernetes.notices import pods_to_tell
from holdfast.adapters.kubernetes.objects import KINDS, Pod, Workload
from holdfast.adapters.kubernetes.pod_logs import PodLogs, failed, findings, has_launcher
from holdfast.errors import ConfigError, PermanentOrderError, TemporaryOrderError
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


def failed_pod(reason: str, message: str, *containers: dict[str, Any]) -> Pod:
    status = {"phase": "Failed", "reason": reason, "message": message, "containerStatuses": list(containers)}
    return msgspec.convert({"metadata": {"name": "p", "namespace": "default", "uid": "u-p"}, "status": status}, Pod)


def killed(reason: str) -> dict[str, Any]:
    return {"name": "main", "state": {"terminated": {"exitCode": 137, "reason": reason}}}


@pytest.mark.parametrize(
    ("found", "rule"),
    [
        (failed_pod("", "", killed("OOMKilled")), "oom.kubernetes"),
        (failed_pod("Evicted", "The node was low on resource: ephemeral-storage. "), "k8s.evicted"),
        (failed_pod("", "", killed("Error")), ""),
    ],
    ids=["OOMKilled", "evicted", "nothing more"],
)
def test_a_kubelets_word_is_a_finding_also_when_a_launcher_went_with_its_container(found: Pod, rule: str):
    """Nothing is asked of the API server for it; of which of the launcher's attempts it tells is not known."""

    async def body() -> list[Any]:
        seen: list[Any] = []

        async def tell(events: Any) -> None:
            seen.extend(events)

        logs = PodLogs(lambda: read_matcher(read_catalogue()), SystemClock(), tell, limit_s=60.0)
        over = asyncio.Event()
        unused: Any = None
        launched = job(["holdfast", "run", "train.py"])
        if not logs.told_of(unused, launched, JobKey("c", "default.job.j"), [found], then=over.set):
            async with asyncio.timeout(90):
                await over.wait()
        return seen

    told = [(one.finding.rule, one.finding.attempt, one.finding.evidence[0].file) for one in asyncio.run(body())]
    assert told == ([(rule, None, "p/status")] if rule else [])


def test_a_failure_of_long_ago_is_not_looked_into():
    """Where no container says when it ended, the job does."""
    conditions = [{"type": "Failed", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]
    old = job(["torchrun"])
    old.manifest["status"] = {"conditions": conditions}
    logs = PodLogs(lambda: read_matcher(read_catalogue()), SystemClock(), cast("Any", None), limit_s=60.0)
    pods = [failed_pod("Evicted", "The node was low on resource: memory. ")]
    assert failed(pods) == pods
    assert logs.told_of(cast("Any", None), old, JobKey("c", "default.job.j"), pods, then=lambda: None)


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


WARNS = '{"version": 1, "checks": [{"check": "disk", "status": "warning", "detail": "81 %"}, {"check": "a", "status": "ok"}]}'
BAD = '{"checks": [{"check": "gpu-count", "status": "critical", "detail": "7 of 8"}]}'
NONE = '{"checks": [{"check": "gpu-count", "status": "not applicable"}, {"check": "b", "status": "switched off"}]}'


def ended(code: int | None, *, deleted: bool = False, **status: Any) -> Pod:
    """A check pod that ended with this code; None: no container of it has an end."""
    about: dict[str, Any] = {"name": "p", "deletionTimestamp": "2026-11-22T05:00:00Z" if deleted else None}
    ends = [] if code is None else [{"name": "check", "state": {"terminated": {"exitCode": code}}}]
    form = {"phase": "Succeeded" if code == 0 else "Failed", "containerStatuses": ends, **status}
    return msgspec.convert({"metadata": about, "status": form}, Pod)


@pytest.mark.parametrize(
    ("found", "text", "words"),
    [
        (ended(0), WARNS, "2 health checks passed"),
        (ended(0), "", "the check pod ended well"),
        (ended(0), None, "the check pod ended well"),
        (ended(0, deleted=True), "all is well", "all is well"),
        (ended(1), WARNS, "2 health checks passed"),
    ],
)
def test_a_check_pod_that_passes_its_node(found: Pod, text: str | None, words: str):
    """Ended well, whoever deletes it afterwards; or with warnings that it tells of."""
    assert judged("n1", found, text) == words


@pytest.mark.parametrize(
    ("found", "text", "words"),
    [
        (ended(2), BAD, r"n1 failed \(exit code 2\): gpu-count: 7 of 8"),
        (ended(1), BAD, r"exit code 1\): gpu-count: 7 of 8"),
        (ended(1), "Traceback\nValueError: x", r"exit code 1\): ValueError: x"),
        (ended(137), "", r"exit code 137"),
        (ended(137, reason="DeadlineExceeded", message="too long"), "", r"DeadlineExceeded\): too long"),
    ],
)
def test_a_check_pod_that_fails_its_node(found: Pod, text: str | None, words: str):
    """A bare exit code 1 is no pass, nor is one beside a check that is critical."""
    with pytest.raises(PermanentOrderError, match=words):
        judged("n1", found, text)


@pytest.mark.parametrize(
    ("found", "text", "words"),
    [
        (ended(137, deleted=True), "", "on n1 is being deleted"),
        (ended(143, deleted=True), BAD, "is being deleted"),
        (ended(143, reason="TerminationByKubelet"), "", "was ended: TerminationByKubelet"),
        (ended(137, conditions=[{"type": "DisruptionTarget", "status": "True"}]), "", "was ended: no word why"),
        (ended(None, reason="Evicted"), None, "was ended: Evicted"),
        (ended(0), NONE, "could run no check: does it see the node's GPUs"),
        (ended(0), '{"checks": []}', "could run no check"),
        (ended(1), None, "its log cannot be read"),
        *((ended(code), "no such file", f"could not run: exit code {code}") for code in (69, 70, 78, 125, 126, 127)),
    ],
)
def test_a_check_pod_that_says_nothing_about_its_node(found: Pod, text: str | None, words: str):
    """Deleted, drained, shut down, without GPUs or a program: the node neither passes nor fails by it."""
    with pytest.raises(TemporaryOrderError, match=words):
        judged("n1", found, text)


def test_the_form_is_found_between_other_lines():
    """What was logged before and after it, also as JSON; what is no such form is none."""
    pretty = msgspec.json.format(WARNS.encode(), indent=2).decode()
    around = '{"event": "starts"}\nno {brace} here\n' + pretty + '\n{"event": "ends"}\nbye }\n'
    for text in (WARNS, pretty, around, "x: " + WARNS, "{\n" * 200 + WARNS):
        told = read_form(text)
        assert told is not None, text
        assert told.ran == 2, text
    for text in ("", "}", "{", '{"checks": 7}', '{"checks": ["a"]}', "[" * 100_000, '{"a":' * 100_000, '{"ok": true}'):
        assert read_form(text) is None, text[:40]


class _Answers:
    """An API server that gives every pod the same log."""

    async def raw(self, *_: Any, **__: Any) -> bytes:
        return b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 3\n"


@pytest.mark.parametrize("broken", [True, False])
def test_a_reading_that_breaks_or_hangs_ends_and_says_so(capsys: pytest.CaptureFixture[str], broken: bool):
    """A journal that refuses what was found is an error of that job; one that never answers is waited for so long."""

    async def tell(_: Any) -> None:
        if broken:
            raise ValueError("no room")
        await asyncio.Event().wait()

    async def body() -> None:
        logs = PodLogs(lambda: read_matcher(read_catalogue()), SystemClock(), tell, limit_s=60.0 if broken else 0.01)
        over = asyncio.Event()
        words: Any = (_Answers(), job(["torchrun"]), JobKey("c", "default.job.j"), [pod("a", 1)])
        assert not logs.told_of(*words, then=over.set)
        async with asyncio.timeout(90):
            await over.wait()
        assert logs.told_of(*words, then=over.set)

    asyncio.run(body())
    said = capsys.readouterr()
    wanted = "no room" if broken else "in time"
    assert wanted in said.out + said.err


class _Server:
    """An API server that has one check pod already, and notes what it is asked to delete."""

    def __init__(self, **about: Any) -> None:
        self.pod = {"metadata": {"uid": "u1", **about}}
        self.deleted: list[tuple[str, str]] = []

    async def get(self, path: str) -> Any:
        return self.pod if "/pods/" in path else {"template": {"spec": {}}}

    async def create(self, path: str, _: Any) -> Any:
        raise ApiError(409, "AlreadyExists", "it is there", what=path)

    async def drop(self, path: str, *, uid: str, **_: Any) -> None:
        self.deleted.append((path.rpartition("/")[2], uid))


def _check_pods(server: _Server, pods: list[Pod]) -> CheckPods:
    looks = Looks(cast("Any", server))
    looks.pods.items.update({one.metadata.uid: one for one in pods})
    return CheckPods(looks, "default/checks", limit_s=60.0)


def _checking(name: str, node: str, **about: Any) -> Pod:
    notes = {"namespace": "default", "annotations": {CHECKED: node}}
    return msgspec.convert({"metadata": {"name": name, "uid": f"u-{name}", **notes, **about}}, Pod)


def test_check_pods_that_nobody_waits_for_are_taken_away_by_uid():
    """Those of this node and this namespace that do not go already; never somebody else's, never the one waited for."""
    server = _Server()
    pods = [
        _checking("old", "n1"),
        _checking("mine", "n1"),
        _checking("going", "n1", deletionTimestamp="2026-11-22T05:00:00Z"),
        _checking("other", "n2"),
        _checking("away", "n1", namespace="elsewhere"),
        pod("train", None),
    ]
    asyncio.run(_check_pods(server, pods).clear("n1", but="mine"))
    assert server.deleted == [("old", "u-old")]


def test_a_former_check_pod_that_still_goes_is_waited_for():
    """Its name is taken until then: tried again, and no word about the node."""
    order = ValidateNode(id="v", cause=1, node="n1")
    server = _Server(deletionTimestamp="2026-11-22T05:00:00Z")
    with pytest.raises(TemporaryOrderError, match="the former check pod on n1 is still going"):
        asyncio.run(_check_pods(server, []).execute(order))
    assert server.deleted == []


def test_who_stops_waiting_leaves_the_check_pod():
    """The controller that takes over goes on waiting for it."""
    order = ValidateNode(id="v", cause=1, node="n1")
    server = _Server()

    async def body() -> None:
        task = asyncio.create_task(_check_pods(server, []).execute(order))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()

    asyncio.run(body())
    assert server.deleted == []
