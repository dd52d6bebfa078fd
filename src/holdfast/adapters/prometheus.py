"""Reads a span of time from a Prometheus by its HTTP API. Called by `holdfast report --prometheus URL`.

Three kinds of question are asked: which alerts fired (`ALERTS`), which share of the targets answered (`up`), and how
many instances had a metric. Nothing is written there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import httpx

from holdfast.errors import LinkError, UsageError

LIMIT_S = 60.0
POINTS_MAX = 10_000
"""Prometheus refuses more than 11,000 points of a series in one answer."""
STEP_S = 15.0


class Prometheus:
    """A Prometheus at `url`, such as `http://127.0.0.1:9090`; also a path in front of it, as behind a proxy.

    Raises:
        UsageError: not an address.
    """

    def __init__(
        self, url: str, *, said_by: str = "--prometheus", transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._said_by = said_by
        self._url = url
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"{said_by} {url}: write an address such as http://127.0.0.1:9090")
        try:
            self._client = httpx.AsyncClient(
                base_url=url.rstrip("/"), timeout=LIMIT_S, transport=transport, trust_env=False
            )
        except httpx.InvalidURL as error:
            raise UsageError(f"{said_by} {url}: not an address: {error}") from error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def firing(self, begin: float, end: float) -> tuple[list[tuple[dict[str, str], list[float]]], float]:
        """(labels, times at which it fired) of each alert, and the seconds between two times."""
        step_s = max(STEP_S, (end - begin) / POINTS_MAX)
        query = {"query": 'ALERTS{alertstate="firing"}', "start": f"{begin:.3f}", "end": f"{end:.3f}"}
        found = await self._ask("/api/v1/query_range", query | {"step": f"{step_s:.3f}"})
        return [(one["metric"], [float(at) for at, _ in one["values"]]) for one in found], step_s

    async def up(self, begin: float, end: float) -> dict[str, float]:
        """Per scrape job the mean share of its targets that answered."""
        query = f"avg by (job) (avg_over_time(up[{_span(begin, end)}]))"
        found = await self._ask("/api/v1/query", {"query": query, "time": f"{end:.3f}"})
        return {one["metric"].get("job", ""): float(one["value"][1]) for one in found}

    async def instances(self, metrics: Sequence[str], begin: float, end: float) -> int:
        """How many instances had one of these metrics at any time."""
        parts = (f"present_over_time({name}[{_span(begin, end)}])" for name in metrics)
        query = f"count(count by (instance) ({' or '.join(parts)}))"
        found = await self._ask("/api/v1/query", {"query": query, "time": f"{end:.3f}"})
        return int(float(found[0]["value"][1])) if found else 0

    async def _ask(self, path: str, query: dict[str, str]) -> list[Any]:
        try:
            answer = await self._client.post(path, data=query)
            body = answer.json()
            if body["status"] != "success":
                raise LinkError(f"{self._said_by} {self._url}: {body.get('error', answer.status_code)}")
            return list(body["data"]["result"])
        except httpx.HTTPError as error:
            raise LinkError(f"{self._said_by} {self._url}: no answer: {str(error) or type(error).__name__}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise LinkError(f"{self._said_by} {self._url}: what answers there is no Prometheus") from error


def _span(begin: float, end: float) -> str:
    return f"{max(1, round(end - begin))}s"
