"""Records of jobs put away: what is written comes back whole, and what is not bound to its original is not believed."""

from __future__ import annotations

import asyncio
import copy
import json
import re
from typing import Any, cast

import pytest

from holdfast.adapters.kubernetes.api import ApiError, KubeApi
from holdfast.adapters.kubernetes.objects import HELD, KINDS, Workload
from holdfast.adapters.kubernetes.patches import remade
from holdfast.adapters.kubernetes.put_away import NAMESPACE, record_name, record_of, taken_out, write

JOB = Workload(
    kind=KINDS["Job"],
    version="v1",
    manifest={
        "metadata": {"name": "llama", "namespace": "team", "uid": "u1", "annotations": {HELD: "Xid 74"}},
        "spec": {"template": {"spec": {}}},
    },
)


def record(**manifest: Any) -> dict[str, Any]:
    """JOB's record, with these fields of the manifest otherwise."""
    found = record_of(JOB, JOB.manifest, NAMESPACE)
    kept = json.loads(found["data"]["manifest.json"])
    kept["metadata"] |= manifest.pop("metadata", {})
    return {**found, "data": {"manifest.json": json.dumps({**kept, **manifest})}}


def test_what_is_put_away_comes_back_whole():
    """With its uid, so that what is left of its pods is known; made anew it has none."""
    back, why = taken_out(record(), KINDS, NAMESPACE)
    assert (why, back is not None) == ("", True)
    assert back is not None
    assert (back.id, back.uid, back.version, back.put_away, back.held) == ("team.job.llama", "u1", "v1", True, True)
    assert back.manifest["spec"] == JOB.manifest["spec"]
    assert "uid" not in remade(back, restore_step=None)["metadata"]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (record(metadata={"namespace": "kube-system"}), "its namespace is 'team' in the record"),
        (record(metadata={"namespace": None}), "its namespace is"),
        (record(metadata={"uid": "u2"}), "its uid is"),
        (record(metadata={"name": "other"}), "its name is"),
        (record(kind="JobSet"), "its kind is"),
        (record(apiVersion="v1/namespaces/kube-system/jobs?"), "apiVersion 'v1/namespaces/kube-system/jobs\\?'"),
        (record(apiVersion="batch/v2"), "is not known for Job"),
        (record(metadata={"namespace": 7}), "its namespace is"),
        ({**record(), "data": {"manifest.json": "[]"}}, "no object"),
        ({**record(), "data": {"manifest.json": "{"}}, "not JSON"),
        ({**record(), "metadata": {**record()["metadata"], "namespace": "default"}}, "not in the namespace holdfast"),
        ({**record(), "metadata": {**record()["metadata"], "name": "holdfast-job-llama"}}, "its name is not that"),
    ],
)
def test_a_record_that_is_not_bound_to_its_original_is_not_believed(found: dict[str, Any], said: str):
    """It says what does not agree; nothing of it reaches a path."""
    job, why = taken_out(found, KINDS, NAMESPACE)
    assert job is None
    assert re.search(said, why), why


def test_names_in_a_record_must_be_an_objects():
    """Also where record and manifest agree."""
    for namespace, name in (("../kube-system", "x"), ("team", "x/../y"), ("team", "a?b"), ("t.b", "x"), ("team", "")):
        manifest = copy.deepcopy(JOB.manifest)
        manifest["metadata"] |= {"namespace": namespace, "name": name}
        job = Workload(kind=KINDS["Job"], version="v1", manifest=manifest)
        assert taken_out(record_of(job, manifest, NAMESPACE), KINDS, NAMESPACE)[0] is None, (namespace, name)


def test_a_record_of_another_sort_is_passed_over():
    """A node's record, or of a kind that is not served here."""
    kept = record()
    kept["metadata"]["annotations"]["holdfast.dev/kind"] = "Node"
    assert taken_out(kept, KINDS, NAMESPACE) == (None, "")
    assert taken_out(record(), {}, NAMESPACE) == (None, "")
    assert taken_out({"metadata": {}}, KINDS, NAMESPACE) == (None, "")


def test_each_job_has_a_record_of_its_own():
    """Whatever its namespace and however long its name; always a name that the API takes."""
    jobs = [
        ("Job", "a", "b-c"),
        ("Job", "a-b", "c"),
        ("JobSet", "a", "b-c"),
        *(("Job", "n", "x" * 250 + e) for e in "ab"),
    ]
    names = {record_name(*job) for job in jobs}
    assert len(names) == len(jobs)
    assert all(len(name) <= 253 for name in names)


class _Server:
    """An API server that lacks a namespace, or has the record already."""

    def __init__(self, *refusals: int) -> None:
        self.refusals = list(refusals)
        self.asked: list[str] = []

    async def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(f"create {path}")
        if path.endswith("configmaps") and self.refusals:
            raise ApiError(self.refusals.pop(0), "", "no")
        return body

    async def patch(self, path: str, body: dict[str, Any], _: str) -> dict[str, Any]:
        self.asked.append(f"patch {path}")
        return body


@pytest.mark.parametrize(
    ("refusal", "then"),
    [(409, ["patch /configmaps/NAME"]), (404, ["create /api/v1/namespaces", "create /configmaps"])],
)
def test_a_record_is_written_over_an_older_one_and_where_its_namespace_is_missing(refusal: int, then: list[str]):
    """A controller outside a pod finds no namespace of Holdfast's at first."""
    server = _Server(refusal)
    asyncio.run(write(cast("KubeApi", server), record()))
    place = "/api/v1/namespaces/holdfast"
    name = record()["metadata"]["name"]
    wanted = [one.replace(" /configmaps", f" {place}/configmaps").replace("NAME", name) for one in then]
    assert server.asked == [f"create {place}/configmaps", *wanted]


def test_no_path_is_asked_for_that_a_name_could_not_make():
    """Whatever a name in it was made of: refused as not found before anything is sent."""
    api = KubeApi(type("C", (), {"host": "http://127.0.0.1:1"})(), None, cluster="c")
    for path in ("/api/v1/../x", "/apis/batch/v1/jobs?a=b", "/api//x", "/api/v1/a%2fb", "/api/./x", "/api/x#y", "/a b"):
        with pytest.raises(ApiError, match="no object can have this name") as told:
            asyncio.run(api.get(path))
        assert told.value.gone
