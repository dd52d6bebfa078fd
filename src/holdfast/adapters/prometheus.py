"""Reads a span of time from a Prometheus by its HTTP API. Called by `holdfast report --prometheus URL`.

Three kinds of question are asked: which alerts fired (`ALERTS`), which share of the targets answered (`up`), and how
many instances had a metric. Nothing is written there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar
from urllib.parse import unquote

import httpx

from holdfast.errors import LinkError, UsageError

LIMIT_S = 60.0
POINTS_MAX = 10_000
"""Prometheus refuses more than 11,000 points of a series in one answer."""
STEP_S = 15.0
PORT_MAX = 65535
_T = TypeVar("_T")


def shown(url: str) -> str:
    """An address as people may see it: without user, password and query, also where it is no proper address."""
    bare = re.sub(r"\A([A-Za-z][A-Za-z0-9+.-]*://|//)?.*@", r"\1", url, flags=re.DOTALL)
    return re.split(r"[?#]", bare, maxsplit=1)[0]


def said_by_http(error: Exception) -> str:
    """The first line of what httpx says, at most 160 characters, with each address in it as `shown`."""
    line = next(iter(str(error).splitlines()), "").strip() or type(error).__name__
    return re.sub(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"]+", lambda found: shown(found[0]), line)[:160]


def asked_at(url: str) -> tuple[str, tuple[str, str] | None]:
    """An address without user and password, and these: so that no error and no log of httpx's can quote them.

    Raises:
        ValueError: not an address; says why, without quoting it.
    """
    scheme, slashes, rest = url.partition("://")
    if not slashes or scheme.lower() not in {"http", "https"}:
        raise ValueError("write an address such as http://127.0.0.1:9090")
    words, at, _ = re.split(r"[/?#]", rest, maxsplit=1)[0].rpartition("@")
    base = f"{scheme}{slashes}{rest[len(words) + 1 :]}" if at else url
    if "@" in base:
        # A password with a slash: its first part would be taken for the host, and told.
        raise ValueError("not an address: write / ? # of a password as %2F %3F %23, and @ of a path as %40")
    try:
        port = httpx.URL(base).port
    except (httpx.InvalidURL, ValueError) as error:
        raise ValueError(f"not an address: {said_by_http(error)}") from None
    if port is not None and port > PORT_MAX:
        raise ValueError(f"not an address: a port is at most {PORT_MAX}")
    user, _, password = words.partition(":")
    return base, (unquote(user), unquote(password)) if at else None


class Prometheus:
    """A Prometheus at `url`, such as `http://127.0.0.1:9090`; also a path in front of it, as behind a proxy.

    Raises:
        UsageError: not an address.
    """

    def __init__(
        self, url: str, *, said_by: str = "--prometheus", transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._where = f"{said_by} {shown(url)}"
        try:
            base, auth = asked_at(url.rstrip("/"))
        except ValueError as error:
            raise UsageError(f"{self._where}: {error}") from None
        self._client = httpx.AsyncClient(
            base_url=base, auth=auth, timeout=LIMIT_S, transport=transport, trust_env=False
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def firing(self, begin: float, end: float) -> tuple[list[tuple[dict[str, str], list[float]]], float]:
        """(labels, times at which it fired) of each alert, and the seconds between two times. Raises LinkError."""
        step_s = max(STEP_S, (end - begin) / POINTS_MAX)
        query = {"query": 'ALERTS{alertstate="firing"}', "start": f"{begin:.3f}", "end": f"{end:.3f}"}
        query["step"] = f"{step_s:.3f}"
        return await self._ask("/api/v1/query_range", query, _times), step_s

    async def up(self, begin: float, end: float) -> dict[str, float]:
        """Per scrape job the mean share of its targets that answered. Raises LinkError."""
        query = f"avg by (job) (avg_over_time(up[{_span(begin, end)}]))"
        return await self._ask("/api/v1/query", {"query": query, "time": f"{end:.3f}"}, _shares)

    async def instances(self, metrics: Sequence[str], begin: float, end: float) -> int:
        """How many instances had one of these metrics at any time. Raises LinkError."""
        parts = (f"present_over_time({name}[{_span(begin, end)}])" for name in metrics)
        query = f"count(count by (instance) ({' or '.join(parts)}))"
        return await self._ask("/api/v1/query", {"query": query, "time": f"{end:.3f}"}, _count)

    async def _ask(self, path: str, query: dict[str, str], read: Callable[[list[Any]], _T]) -> _T:
        """What `read` makes of the answer's result; raises LinkError where there is none, or `read` finds none."""
        try:
            answer = await self._client.post(path, data=query)
            body = answer.json()
            if body["status"] != "success":
                raise LinkError(f"{self._where}: {body.get('error', answer.status_code)}")
            return read(list(body["data"]["result"]))
        except httpx.HTTPError as error:
            raise LinkError(f"{self._where}: no answer: {said_by_http(error)}") from error
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise LinkError(f"{self._where}: what answers there is no Prometheus") from error


def _times(result: list[Any]) -> list[tuple[dict[str, str], list[float]]]:
    return [(_labels(one), [_number(at) for at, _ in one["values"]]) for one in result]


def _shares(result: list[Any]) -> dict[str, float]:
    return {_labels(one).get("job", ""): _number(one["value"][1]) for one in result}


def _count(result: list[Any]) -> int:
    return int(_number(result[0]["value"][1])) if result else 0


def _labels(series: dict[str, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in series["metric"].items()}


def _number(said: Any) -> float:
    """Raises ValueError for what is no finite number."""
    found = float(said)
    if not math.isfinite(found):
        raise ValueError(f"{found} is no finite number")
    return found


def _span(begin: float, end: float) -> str:
    return f"{max(1, round(end - begin))}s"
