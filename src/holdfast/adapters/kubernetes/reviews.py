"""Who a ServiceAccount token belongs to, by the API server's own word (TokenReview): how agents and launchers log in.

`api/auth.py` asks it about tokens that its book does not know. A token must be made for the audience `holdfast` and
bound to its pod. One of the agents' account may report as the node that its pod runs on; any other as the launcher of
the training job that its pod belongs to, by the owner references that the API server holds. Answers are kept for two
minutes, and for ten while the API server cannot be reached: agents must be heard most of all then. Times are the
caller's monotonic seconds.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable

import structlog

from holdfast.adapters.kubernetes.api import ApiError, KubeApi
from holdfast.adapters.kubernetes.objects import KINDS, Json, Kind, job_id
from holdfast.errors import LinkError

AUDIENCE = "holdfast"
REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
KEPT_S = 120.0
REFUSAL_KEPT_S = 10.0
CUT_OFF_KEPT_S = 600.0
KEPT_MAX = 20_000
TOKEN_MAX = 8192
"""A ServiceAccount token has about a thousand characters."""
_USER = "system:serviceaccount:"
_POD = "authentication.kubernetes.io/pod-name"
_UID = "authentication.kubernetes.io/pod-uid"
_NODE = "authentication.kubernetes.io/node-name"
OWNERS_MAX = 4
"""A pod's Job may be part of a JobSet, and that of a TrainJob."""

_log = structlog.get_logger("holdfast.kubernetes")


class TokenReviews:
    """Asks the API server about tokens.

    Args:
        api: makes a connection at the first question.
        account: `NAMESPACE/NAME` of the agents' ServiceAccount; any other account's pods are launchers'.
        monotonic: the caller's clock.
    """

    def __init__(self, api: Callable[[], Awaitable[KubeApi]], account: str, monotonic: Callable[[], float]) -> None:
        self._make = api
        self._api: KubeApi | None = None
        self._namespace, _, self._name = account.partition("/")
        self._monotonic = monotonic
        self._known: OrderedDict[str, tuple[float, str]] = OrderedDict()
        """Token's hash -> when it was asked about, and whose it is; nobody's: it was refused."""

    async def source_of(self, token: str) -> str:
        """What its holder may report as, `agent:NODE` or `launcher:JOB`; empty: it is nobody's that we know.

        Raises:
            LinkError: the API server cannot tell now.
        """
        if token.count(".") != 2 or len(token) > TOKEN_MAX:
            return ""
        digest, now = hashlib.sha256(token.encode("utf-8", "replace")).hexdigest(), self._monotonic()
        asked_at, source = self._known.get(digest, (-CUT_OFF_KEPT_S, ""))
        if now - asked_at < (KEPT_S if source else REFUSAL_KEPT_S):
            return source
        try:
            found = await self._ask(token)
        except LinkError:
            if source and now - asked_at < CUT_OFF_KEPT_S:
                return source
            raise
        self._known[digest] = (now, found)
        self._known.move_to_end(digest)
        if len(self._known) > KEPT_MAX:
            self._known.popitem(last=False)
        return found

    async def close(self) -> None:
        """Close the connection."""
        if self._api is not None:
            await self._api.close()

    async def _ask(self, token: str) -> str:
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [AUDIENCE]},
        }
        try:
            if self._api is None:
                self._api = await self._make()
            status = (await self._api.create(REVIEWS, body)).get("status", {})
            if not status.get("authenticated") or not is_for_us(status):
                return ""
            return await self._source(self._api, status.get("user", {}))
        except ApiError as error:
            hint = (
                ": give the controller create of tokenreviews, get of pods and of jobs" if error.status == 403 else ""
            )
            raise LinkError(f"tokens cannot be reviewed: {error}{hint}") from error

    async def _source(self, api: KubeApi, user: Json) -> str:
        name = str(user.get("username", ""))
        namespace = name.removeprefix(_USER).partition(":")[0]
        extra: dict[str, list[str]] = user.get("extra", {})
        pods, uids = extra.get(_POD, []), extra.get(_UID, [])
        if not name.startswith(_USER) or not is_bound(pods):
            _log.warning("a token that is not bound to a pod was refused", user=name)
            return ""
        is_agent = is_account(name, f"{_USER}{self._namespace}:{self._name}")
        if is_agent and extra.get(_NODE):
            return f"agent:{extra[_NODE][0]}"
        pod = await _found(api, f"/api/v1/namespaces/{namespace}/pods/{pods[0]}", uids[0] if uids else "")
        if pod is None:
            return ""
        if is_agent:
            node = str(pod.get("spec", {}).get("nodeName", ""))
            return f"agent:{node}" if node else ""
        job = await _job_of(api, pod, namespace)
        if not job:
            _log.warning("the token of a pod that belongs to no training job was refused", user=name, pod=pods[0])
        return f"launcher:{job}" if job else ""


def is_for_us(status: Json) -> bool:
    """Was the token made for this controller, and not for another service, which could show it here?"""
    return AUDIENCE in status.get("audiences", ())


def is_bound(pods: list[str]) -> bool:
    """Does the token end with its pod? Others may lie anywhere."""
    return bool(pods)


def is_account(name: str, agents: str) -> bool:
    """Is it the agents' own account?"""
    return name == agents


def is_same(uid: str, found: str | None) -> bool:
    """Is it the object that was meant, and not another one of its name?"""
    return uid in {"", found}


async def _found(api: KubeApi, path: str, uid: str) -> Json | None:
    """The object, if it is still this one."""
    try:
        found = await api.get(path)
    except ApiError as error:
        if error.gone:
            return None
        raise
    return found if is_same(uid, found["metadata"].get("uid")) else None


async def _job_of(api: KubeApi, pod: Json, namespace: str) -> str:
    """The id of the job that the pod is part of: the topmost of its owners whose kind Holdfast knows; empty: none."""
    found, one = "", pod
    for _ in range(OWNERS_MAX):
        owners = one["metadata"].get("ownerReferences") or []
        owner = next((each for each in owners if each.get("controller")), owners[0] if owners else {})
        kind, version = _kind_of(owner)
        if kind is None:
            break
        above = await _found(api, kind.path(version, namespace, owner["name"]), owner["uid"])
        if above is None:
            return ""  # made anew under its name meanwhile: this pod is not one of the new one's
        found, one = job_id(kind.name, namespace, owner["name"]), above
    return found


def _kind_of(owner: Json) -> tuple[Kind | None, str]:
    group, _, version = str(owner.get("apiVersion", "")).partition("/")
    kind = KINDS.get(str(owner.get("kind", "")))
    is_known = kind is not None and kind.group == group and version in kind.versions
    return (kind, version) if is_known else (None, "")
