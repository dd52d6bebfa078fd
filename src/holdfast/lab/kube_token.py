"""Tokens that a pod's manifest has mounted, made as a kubelet makes them: asked of the API server, bound to the pod.

`kube_kubelet` calls `write` before a container is started. A container here is a process on this machine, where no file
can be laid over `/var/run`: each token lies in the node's folder instead, and `moved` puts that place wherever the
command or the environment names the mount. Tokens are good for a day and are not renewed. Only `write` does I/O.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.adapters.kubernetes.api import KubeApi

Json = dict[str, Any]
DAY_S = 86400


def tokens(pod: Json) -> list[tuple[str, Json]]:
    """The name of each volume that holds a ServiceAccount token, with what is asked for."""
    return [
        (volume["name"], source["serviceAccountToken"])
        for volume in pod["spec"].get("volumes") or []
        for source in (volume.get("projected") or {}).get("sources") or []
        if source.get("serviceAccountToken", {}).get("audience")
    ]


def mounts(pod: Json, container: Json, folder: Path) -> dict[str, str]:
    """Mount path -> where it is on this machine, for the container's volumes that hold such a token."""
    names = {name for name, _ in tokens(pod)}
    mounted = container.get("volumeMounts") or []
    return {one["mountPath"].rstrip("/"): str(folder / one["name"]) for one in mounted if one["name"] in names}


def moved(text: str, places: Mapping[str, str]) -> str:
    """A path at or below a mount, as it is on this machine; any other text as it stands."""
    for mount, place in places.items():
        if text == mount or text.startswith(f"{mount}/"):
            return place + text[len(mount) :]
    return text


async def write(api: KubeApi, pod: Json, folder: Path) -> None:
    """Ask for the pod's tokens and write each to its volume's folder, for the owner alone.

    Raises:
        ApiError: the account is not there, or the API server makes no such token.
        LinkError: the API server does not answer.
    """
    about = pod["metadata"]
    account = pod["spec"].get("serviceAccountName") or "default"
    bound = {"kind": "Pod", "apiVersion": "v1", "name": about["name"], "uid": about["uid"]}
    for volume, asked in tokens(pod):
        spec = {"audiences": [asked["audience"]], "expirationSeconds": DAY_S, "boundObjectRef": bound}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        made = await api.create(f"/api/v1/namespaces/{about['namespace']}/serviceaccounts/{account}/token", body)
        await asyncio.to_thread(_put, folder / volume / asked.get("path", "token"), made["status"]["token"])


def _put(file: Path, token: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    file.touch(mode=0o600)
    file.write_text(token, encoding="ascii")
