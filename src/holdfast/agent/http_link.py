"""A controller link over HTTP: `POST /v1/ingest` and `POST /v1/beat` as docs/architecture.md has them.

One kept connection per controller. Time: each call has limits, so that a controller that hangs is noticed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import httpx
import msgspec

from holdfast.agent.controller_link import Address
from holdfast.errors import LinkError, WireError
from holdfast.model.events import AnyEvent
from holdfast.model.wire import Batch, Beat, BeatAnswer, IngestAnswer, decode, encode

CONNECT_S = 2.0
CALL_S = 10.0

T = TypeVar("T")


class HttpLink:
    """A connection to the controller at `address`. See ControllerLink.

    Args:
        address: where it listens.
        token: bearer token, empty when the controller asks for none.
        ca_file: certificate authority that its certificate is checked against; None: the machine's own.
    """

    def __init__(self, address: Address, *, token: str = "", ca_file: Path | None = None) -> None:
        headers = {"content-type": "application/json"}
        if token:
            headers["authorization"] = f"Bearer {token}"
        # Verification costs 20 ms of loading certificates; plain HTTP on loopback does without.
        verify = str(ca_file) if ca_file is not None else address.url.startswith("https")
        self._client = httpx.AsyncClient(
            base_url=address.url,
            headers=headers,
            timeout=httpx.Timeout(CALL_S, connect=CONNECT_S),
            verify=verify,
            trust_env=False,
        )

    async def ingest(self, source: str, events: Sequence[AnyEvent]) -> IngestAnswer:
        """See ControllerLink."""
        batch = Batch(source=source, events=[msgspec.Raw(encode(event)) for event in events])
        return await self._post("/v1/ingest", encode(batch), IngestAnswer)

    async def beat(self, beat: Beat) -> BeatAnswer:
        """See ControllerLink."""
        return await self._post("/v1/beat", encode(beat), BeatAnswer)

    async def close(self) -> None:
        """See ControllerLink."""
        await self._client.aclose()

    async def _post(self, path: str, body: bytes, kind: type[T]) -> T:
        try:
            answer = await self._client.post(path, content=body)
        except (httpx.HTTPError, RuntimeError) as error:  # RuntimeError: closed meanwhile, a newer controller is there
            raise LinkError(f"{self._client.base_url}: {str(error) or type(error).__name__}") from error
        if answer.status_code in {400, 413, 422}:
            raise WireError(f"{path}: {answer.text[:300]}")
        if not answer.is_success:
            raise LinkError(f"{path}: HTTP {answer.status_code} {answer.text[:200]}")
        return decode(answer.content, kind)
