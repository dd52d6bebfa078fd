"""Which notice goes where, when, and how it reads: pure. Called by `outbox.py`; every time is handed in.

A destination takes what is grave enough for it and of its domains, partitions and owners. In its quiet hours only what
is at least `quiet_unless` goes out at once; above `per_hour` messages the rest waits and goes out as one digest.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from zoneinfo import ZoneInfo

from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import SandboxedEnvironment
from msgspec import Struct

from holdfast.adapters.notice_settings import Destination, NotifyConfig
from holdfast.errors import ConfigError
from holdfast.model.evidence import Severity
from holdfast.model.orders import Notify

GRAVITY = {severity: place for place, severity in enumerate(Severity)}
TITLE_MAX, TEXT_MAX = 200, 4000
TEMPLATE = """\
{{ notice.text }}
{%- if facts.drill %}
This is a drill ({{ facts.drill }}): Holdfast broke it on purpose.
{%- endif %}
{%- if facts.summary %}
Cause: {{ facts.summary }}
{%- endif %}
{%- for step in facts.steps %}
- {{ step }}
{%- endfor %}
{%- if links.incident %}
Incident: {{ links.incident }}
{%- endif %}
{%- if links.dashboard %}
Dashboard: {{ links.dashboard }}
{%- endif %}
"""
STEPS = {
    "hardware": "Holdfast keeps the node out and repairs it; look at the node page before you return it by hand.",
    "network": "Look at the switch and cables between the named nodes; several nodes at once mean one cause.",
    "storage": "Is the file system full, slow or gone? Jobs that wait on it come back by themselves.",
    "application": "The program itself failed: the incident names rank and line. A restart may not help.",
    "platform": "A daemon or driver of the cluster failed, not the program: see the named node's log.",
    "operator": "Somebody asked for this: the audit says who and why.",
    "unknown": "The evidence is thin: the incident shows all of it.",
}
"""What to do first, by domain."""


class Facts(Struct, frozen=True):
    """What is known of a notice's matter when it is sent."""

    summary: str = ""
    domain: str = ""
    partition: str = ""
    owner: str = ""
    is_over: bool = False
    """Its incident is closed."""
    steps: tuple[str, ...] = ()
    drill: str = ""
    """The drill that broke it on purpose."""


class Message(Struct, frozen=True):
    """What goes to a service."""

    topic: str
    severity: Severity
    title: str
    text: str
    is_over: bool = False
    count: int = 1


def check(config: NotifyConfig) -> None:
    """Raise ConfigError for what cannot work: names twice, quiet hours, zones, templates, no address."""
    names = [one.name for one in config.to]
    for one in config.to:
        place = f"[[notify.to]] {one.name!r}"
        if not one.name or names.count(one.name) > 1:
            raise ConfigError(f"{place}: each destination needs a name of its own")
        if bool(one.url) == bool(one.url_file):
            raise ConfigError(f"{place}: give url or url_file")
        if one.per_hour < 1:
            raise ConfigError(f"{place}: per_hour is at least 1")
        quiet_span(one)
        try:
            ZoneInfo(one.zone)
            SandboxedEnvironment(undefined=StrictUndefined).from_string(one.template or TEMPLATE)
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(f"{place}: there is no time zone {one.zone!r}") from error
        except TemplateError as error:
            raise ConfigError(f"{place}: the template cannot be read: {error}") from error


def wants(destination: Destination, notice: Notify, facts: Facts) -> bool:
    """Does this notice go there?"""
    if GRAVITY[notice.severity] < GRAVITY[destination.severity] and not (facts.is_over and destination.resolved):
        return False
    if facts.is_over and not destination.resolved and notice.severity is Severity.INFO:
        return False
    return all(
        not asked or found in asked
        for asked, found in (
            (destination.domains, facts.domain),
            (destination.partitions, facts.partition),
            (destination.owners, facts.owner),
        )
    )


def quiet_span(destination: Destination) -> tuple[int, int] | None:
    """Minutes of the day from which and up to which it is quiet; None: never. Raises ConfigError."""
    if not destination.quiet:
        return None
    try:
        begin, _, end = destination.quiet.partition("-")
        found = [dt.time.fromisoformat(word.strip()) for word in (begin, end)]
    except ValueError as error:
        raise ConfigError(
            f"[[notify.to]] {destination.name!r}: quiet = {destination.quiet!r}: write it like 22:00-07:00"
        ) from error
    return found[0].hour * 60 + found[0].minute, found[1].hour * 60 + found[1].minute


def quiet_for_s(destination: Destination, severity: Severity, now: float) -> float:
    """Seconds until a notice of this severity may go there; 0.0: now."""
    span = quiet_span(destination)
    if span is None or GRAVITY[severity] >= GRAVITY[destination.quiet_unless]:
        return 0.0
    local = dt.datetime.fromtimestamp(now, ZoneInfo(destination.zone))
    minute = local.hour * 60 + local.minute
    begin, end = span
    inside = begin <= minute < end if begin <= end else minute >= begin or minute < end
    if not inside:
        return 0.0
    return max(1.0, ((end - minute) % 1440) * 60.0 - local.second)


def render(destination: Destination, config: NotifyConfig, notice: Notify, facts: Facts) -> Message:
    """The notice as this destination reads it. A template that breaks on it gives the plain text instead."""
    incident = notice.incident if facts.summary or facts.domain else ""
    links = {
        "incident": f"{config.link.rstrip('/')}/incidents/{incident}" if config.link and incident else "",
        "dashboard": config.dashboard,
    }
    environment = SandboxedEnvironment(undefined=StrictUndefined)
    try:
        text = environment.from_string(destination.template or TEMPLATE).render(notice=notice, facts=facts, links=links)
    except TemplateError as error:
        text = f"{notice.text}\n(the template of {destination.name} cannot be used: {error})"
    title = f"Resolved: {notice.title}" if facts.is_over else notice.title
    if facts.drill:
        title = f"Drill: {title}"
    return Message(notice.topic, notice.severity, _line(title)[:TITLE_MAX], text.strip()[:TEXT_MAX], facts.is_over)


def joined(messages: Sequence[Message]) -> Message:
    """Several messages as one: of one matter under its first title, of several as a digest, the gravest first."""
    if len(messages) == 1:
        return messages[0]
    worst = max(messages, key=lambda one: GRAVITY[one.severity])
    is_over = all(one.is_over for one in messages)
    count = sum(one.count for one in messages)
    if len({one.topic for one in messages}) == 1:
        lines = [f"{one.title}\n{one.text}".strip() for one in messages]
        return Message(worst.topic, worst.severity, messages[-1].title, "\n\n".join(lines)[:TEXT_MAX], is_over, count)
    ordered = sorted(messages, key=lambda one: -GRAVITY[one.severity])
    lines = [f"{one.severity.upper()}: {one.title}" for one in ordered]
    return Message("digest", worst.severity, f"{count} notices", "\n".join(lines)[:TEXT_MAX], is_over, count)


def _line(text: str) -> str:
    """One line: a title becomes a mail's header."""
    return " ".join(text.split())
