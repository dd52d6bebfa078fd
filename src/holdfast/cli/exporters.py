"""What of the fleet's metrics is really there: for `holdfast doctor --prometheus URL`, and exporters of this machine.

Asks Prometheus, over HTTP, which targets it scrapes, how fresh they are, which versions stand behind them, whether
Holdfast's rules are loaded, and how far its long-term stores are behind. Each question has a time limit. Reads only.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import httpx
from msgspec import Struct

from holdfast.adapters.clock import SystemClock
from holdfast.adapters.prometheus import asked_at, said_by_http, shown
from holdfast.cli.machine import Fact, State

ASK_S = 10.0
LOCAL_S = 1.0
STALE_S = 300.0
"""A newest sample that is older than this is as good as none: Prometheus itself forgets it then."""
BEHIND_S = 120.0
STANDING_BY = "HTTP status 503"
"""In Prometheus's own words."""
RULES = "holdfast-"
"""How the groups of the rules that ship begin."""
PAGE_MAX = 4 * 1024 * 1024
PAGE_S = 5.0


class Exporter(Struct, frozen=True):
    """A kind of target: its job in the shipped scrape configuration, and how to get it."""

    job: str
    serves: str
    advice: str
    version: str
    """A series whose label `version`, or `DCGM_FI_DRIVER_VERSION`, says what runs there; empty: none does."""
    port: int = 0
    """Where it listens by default on each node; 0: not looked for on this machine."""
    stands_by: bool = False
    """One beside another that answers may answer 503: it stands by."""


EXPORTERS = (
    Exporter(
        "holdfast-controller",
        "every alert and the Recovery dashboard",
        "scrape HOST:8470",
        "holdfast_build_info",
        stands_by=True,
    ),
    Exporter(
        "holdfast-agent", "GPU Health", 'write metrics = "HOST:9471" into agent.toml, and scrape it', "", port=9471
    ),
    Exporter(
        "node", "Network Performance", "install prometheus-node-exporter on each node", "node_exporter_build_info", 9100
    ),
    Exporter("dcgm", "GPU Health", "run NVIDIA's dcgm-exporter on each node", "DCGM_FI_DEV_GPU_TEMP", 9400),
    Exporter("slurm", "Slurm Jobs", "run holdfast slurm-exporter where squeue works", "", 9472),
)


class Asked:
    """A Prometheus. `http` has its address as base."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def get(self, path: str, **query: str) -> Any:
        """The `data` of an answer. Raises httpx.HTTPError or ValueError when there is none."""
        answer = self._http.get(f"/api/v1/{path}", params=query)
        answer.raise_for_status()
        return answer.json()["data"]

    def numbers(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series of a query's answer."""
        found = self.get("query", query=expression)["result"]
        return [(one["metric"], float(one["value"][1])) for one in found]


def of_prometheus(url: str, transport: httpx.BaseTransport | None = None) -> list[Fact]:
    """What Prometheus at this address says of the fleet's exporters and of itself."""
    try:
        base, auth = asked_at(url)
        with httpx.Client(base_url=base, auth=auth, timeout=ASK_S, trust_env=False, transport=transport) as http:
            asked = Asked(http)
            version = str(asked.get("status/buildinfo").get("version", ""))
            targets = asked.get("targets", state="active")["activeTargets"]
            facts = [Fact("prometheus", State.OK, f"{version} at {shown(url)}", "alerts and dashboards")]
            facts += [_exporter(asked, one, targets) for one in EXPORTERS]
            return [*facts, _rules(asked), *_stores(asked)]
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError, AttributeError) as error:
        why = f"{shown(url)}: {said_by_http(error)}"
        return [Fact("prometheus", State.BROKEN, why, "alerts and dashboards", "is it a Prometheus, and does it run?")]


def _exporter(asked: Asked, kind: Exporter, targets: list[dict[str, Any]]) -> Fact:
    mine = [one for one in targets if one.get("labels", {}).get("job") == kind.job]
    if not mine:
        return Fact(kind.job, State.MISSING, f"no target of job {kind.job!r} is scraped", kind.serves, kind.advice)
    down = [one for one in mine if one.get("health") != "up"]
    word = f"{len(mine) - len(down)} of {len(mine)} answer"
    if kind.stands_by and len(down) < len(mine):
        standby = [one for one in down if STANDING_BY in str(one.get("lastError", ""))]
        down = [one for one in down if one not in standby]
        word += f", {len(standby)} stand by" if standby else ""
    if down:
        first = down[0]
        where = first.get("labels", {}).get("instance", "?")
        why = str(first.get("lastError", "")) or f"not scraped yet ({first.get('health')})"
        return Fact(kind.job, State.BROKEN, f"{word}; {where}: {why[:120]}", kind.serves, kind.advice)
    ages = asked.numbers(f'time() - max(timestamp(up{{job="{kind.job}"}}))')
    age = ages[0][1] if ages else STALE_S
    word += f", newest sample {age:.0f} s old"
    versions = _versions(asked, kind)
    word += f", version {versions}" if versions else ""
    if age >= STALE_S:
        return Fact(kind.job, State.BROKEN, word, kind.serves, "are the clocks right, and is the scrape interval sane?")
    return Fact(kind.job, State.OK, word, kind.serves)


def _versions(asked: Asked, kind: Exporter) -> str:
    if not kind.version:
        return ""
    labels = [labels for labels, _ in asked.numbers(f'{kind.version}{{job="{kind.job}"}}')]
    found = Counter(one.get("version") or one.get("DCGM_FI_DRIVER_VERSION") or "" for one in labels)
    found.pop("", None)
    return ", ".join(f"{name} ({count})" if len(found) > 1 else name for name, count in found.most_common(4))


def _rules(asked: Asked) -> Fact:
    serves = "alerts"
    groups = [one for one in asked.get("rules")["groups"] if str(one.get("name", "")).startswith(RULES)]
    rules = [rule for group in groups for rule in group.get("rules", [])]
    wrong = [rule for rule in rules if rule.get("lastError")]
    if not rules:
        return Fact("holdfast's rules", State.MISSING, "not loaded", serves, "add holdfast.rules.yml to rule_files")
    if wrong:
        said = f"{wrong[0].get('name')}: {wrong[0]['lastError'][:120]}"
        return Fact("holdfast's rules", State.BROKEN, said, serves, "promtool check rules holdfast.rules.yml")
    firing = sum(1 for rule in rules if rule.get("state") == "firing")
    return Fact("holdfast's rules", State.OK, f"{len(rules)} loaded, {firing} alerts fire now", serves)


def _stores(asked: Asked) -> list[Fact]:
    """One line for each remote_write."""
    serves = "history beyond Prometheus's own"
    behind = _lag(asked)
    if not behind:
        configured = "remote_write:" in str(asked.get("status/config").get("yaml", ""))
        if configured:
            advice = "let Prometheus scrape itself: its own series say how far a store is behind"
            return [Fact("remote_write", State.MISSING, "configured; how it goes cannot be seen", serves, advice)]
        return [Fact("remote_write", State.ABSENT, "not configured", serves)]
    lost = {
        labels.get("url", ""): value
        for labels, value in asked.numbers(
            "sum by (url) (increase(prometheus_remote_storage_samples_failed_total[15m])"
            " + increase(prometheus_remote_storage_samples_dropped_total[15m]))"
        )
    }
    return [_store(url, seconds, lost.get(url, 0.0), serves) for url, seconds in behind]


def _lag(asked: Asked) -> list[tuple[str, float]]:
    """Address of each store and by how many seconds it is behind."""
    newest = asked.numbers("max(prometheus_remote_storage_highest_timestamp_in_seconds)")
    sent = asked.numbers("max by (url) (prometheus_remote_storage_queue_highest_sent_timestamp_seconds)")
    if not newest:
        return []
    return [(labels.get("url", ""), max(0.0, newest[0][1] - value)) for labels, value in sent]


def _store(url: str, behind_s: float, lost: float, serves: str) -> Fact:
    word = f"{shown(url)}: {behind_s:.0f} s behind, {lost:.0f} samples lost in 15 minutes"
    if behind_s > BEHIND_S or lost > 0:
        return Fact("remote_write", State.BROKEN, word, serves, "is the store up, and its password right?")
    return Fact("remote_write", State.OK, word, serves)


def on_this_machine(transport: httpx.BaseTransport | None = None) -> list[Fact]:
    """Exporters that listen on loopback at their usual ports."""
    with httpx.Client(timeout=LOCAL_S, trust_env=False, transport=transport) as http:
        return [_local(http, kind) for kind in EXPORTERS if kind.port]


def _page(http: httpx.Client, url: str) -> str:
    """At most `PAGE_MAX` bytes of it, and what has come within `PAGE_S`: whatever listens there is not to be trusted.

    Raises:
        httpx.HTTPError: it does not answer, or with an error.
    """
    clock = SystemClock()
    until, found = clock.monotonic() + PAGE_S, bytearray()
    with http.stream("GET", url, headers={"Accept-Encoding": "identity"}) as answer:
        answer.raise_for_status()
        for piece in answer.iter_bytes():
            found += piece
            if len(found) >= PAGE_MAX or clock.monotonic() > until:
                break
    return bytes(found[:PAGE_MAX]).decode("utf-8", "replace")


def _local(http: httpx.Client, kind: Exporter) -> Fact:
    name, url = f"{kind.job} metrics", f"http://127.0.0.1:{kind.port}/metrics"
    try:
        text = _page(http, url)
    except httpx.ConnectError:
        return Fact(name, State.ABSENT, f"nothing listens on port {kind.port}", kind.serves)
    except httpx.HTTPError as error:
        return Fact(name, State.MISSING, f"{url}: {str(error).splitlines()[0][:100]}", kind.serves, kind.advice)
    series = sum(1 for line in text.splitlines() if line and not line.startswith("#"))
    version = re.search(r'_build_info\{[^}]*\bversion="([^"]*)"|DCGM_FI_DRIVER_VERSION="([^"]*)"', text)
    said = next((found for found in version.groups() if found), "") if version else ""
    return Fact(
        name, State.OK, f"port {kind.port}, {series} series" + (f", version {said}" if said else ""), kind.serves
    )
