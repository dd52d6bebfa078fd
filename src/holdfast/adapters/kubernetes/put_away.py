"""Jobs put away: the manifest of a job that is deleted until it is made again, in a ConfigMap of Holdfast's namespace.

`job_orders` writes the records, `looks` reads them. A record is believed where only Holdfast writes, and only as far as
it is bound to its original: kind, namespace, name and uid stand in the record and in the manifest and must agree, and
the record's own name follows from them. A tenant can write ConfigMaps in its own namespace: those are never read.
`KeptNodes` keeps its records in the same namespace. No time passes in the pure functions.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from holdfast.adapters.kubernetes.api import MERGE, ApiError, KubeApi
from holdfast.adapters.kubernetes.asks import HOLDFAST
from holdfast.adapters.kubernetes.objects import Kind, Workload

Json = dict[str, Any]
NAMESPACE = "holdfast"
"""Where records are kept by a controller that does not run in a pod."""
PUT_AWAY = f"{HOLDFAST}/put-away"
"""Label of a record."""
MANIFEST = "manifest.json"
_BOUND = ("kind", "namespace", "name", "uid")
"""Annotations `holdfast.dev/...` of a record that say whose it is."""
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(rf"(?=.{{1,253}}$){_LABEL.pattern}(\.{_LABEL.pattern})*")


def collection(namespace: str) -> str:
    """Path of the records."""
    return f"/api/v1/namespaces/{namespace}/configmaps"


def record_of(job: Workload, manifest: Json, namespace: str) -> Json:
    """The ConfigMap that keeps the job while there is none: a controller that takes over finds it there."""
    bound = {"kind": job.kind.name, "namespace": job.namespace, "name": job.name, "uid": job.uid}
    api_version = f"{job.kind.group}/{job.version}"
    whole = {**manifest, "apiVersion": api_version, "kind": job.kind.name}
    whole["metadata"] = {**manifest["metadata"], "name": job.name, "namespace": job.namespace, "uid": job.uid}
    name = record_name(job.kind.name, job.namespace, job.name)
    return record(name, namespace, bound, json.dumps(whole, sort_keys=True))


def record(name: str, namespace: str, notes: Mapping[str, str], manifest: str) -> Json:
    """A record: a manifest, and in its annotations `holdfast.dev/...` whose it is."""
    about = {
        "name": name,
        "namespace": namespace,
        "labels": {PUT_AWAY: "true"},
        "annotations": {f"{HOLDFAST}/{key}": value for key, value in notes.items()},
    }
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "data": {MANIFEST: manifest}}


def record_name(kind: str, namespace: str, name: str) -> str:
    """The ConfigMap's name: one job's alone."""
    mark = hashlib.sha256(f"{kind}/{namespace}/{name}".encode()).hexdigest()[:12]
    return f"{f'holdfast-{kind.lower()}-{namespace}.{name}'[:230].rstrip('-.')}.{mark}"


def taken_out(config_map: Json, kinds: Mapping[str, Kind], namespace: str) -> tuple[Workload | None, str]:
    """The job that a record keeps, or why the record is not believed; neither for a record of another sort.

    Args:
        config_map: as the API server has it.
        kinds: name -> kind, of those that are served.
        namespace: where records are believed.
    """
    about = config_map["metadata"]
    notes = about.get("annotations") or {}
    bound = {key: str(notes.get(f"{HOLDFAST}/{key}") or "") for key in _BOUND}
    kind = kinds.get(bound["kind"])
    if kind is None:
        return None, ""
    try:
        manifest = json.loads((config_map.get("data") or {}).get(MANIFEST, ""))
    except ValueError:
        return None, "its manifest is not JSON"
    why = _wrong(manifest, bound, kind)
    if not why and about.get("namespace") != namespace:
        why = f"it is not in the namespace {namespace}"
    if not why and about.get("name") != record_name(bound["kind"], bound["namespace"], bound["name"]):
        why = "its name is not that of its job's record"
    if why:
        return None, why
    version = str(manifest["apiVersion"]).partition("/")[2]
    return Workload(kind=kind, version=version, manifest=manifest, put_away=True), ""


def _wrong(manifest: Any, bound: Mapping[str, str], kind: Kind) -> str:
    """What in a manifest does not agree with what its record is bound to; empty: nothing."""
    if not isinstance(manifest, dict) or not isinstance(manifest.get("metadata"), dict):
        return "its manifest is no object"
    told = {"kind": manifest.get("kind"), **{key: manifest["metadata"].get(key) for key in _BOUND[1:]}}
    for key in _BOUND:
        if not bound[key] or told[key] != bound[key]:
            return f"its {key} is {bound[key]!r} in the record and {told[key]!r} in the manifest"
    if not _LABEL.fullmatch(bound["namespace"]) or not _SUBDOMAIN.fullmatch(bound["name"]):
        return "its namespace or its name cannot be an object's"
    if manifest.get("apiVersion") not in {f"{kind.group}/{version}" for version in kind.versions}:
        return f"its apiVersion {manifest.get('apiVersion')!r} is not known for {kind.name}"
    return ""


async def write(api: KubeApi, body: Json) -> Json:
    """Create or replace a record; makes the namespace where a controller outside a pod finds none.

    Raises:
        ApiError, LinkError: see `KubeApi.call`.
    """
    namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
    place = collection(namespace)
    try:
        return await api.create(place, body)
    except ApiError as error:
        if error.conflict:
            return await api.patch(f"{place}/{name}", body, MERGE)
        if not error.gone:
            raise
    await api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    return await api.create(place, body)
