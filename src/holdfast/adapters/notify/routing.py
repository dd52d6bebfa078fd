"""Which notice goes where, when, and how it reads: pure. Called by `outbox.py`; every time is handed in.

A destination takes what is grave enough for it and of its domains, partitions and owners. In its quiet hours, and above
`per_hour` messages, only what is at least `quiet_unless` goes out at once, and above `per_hour` what a person must act
on; the rest waits and comes as digests. A
digest holds as many notices as fit into one message; the others wait for the next one. What was told by itself is
closed by itself, so that a service that keeps matters (PagerDuty) is told of their end.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Container, Mapping, Sequence
from zoneinfo import ZoneInfo

from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import SandboxedEnvironment
from msgspec import Struct

from holdfast.adapters.notice_settings import Destination, NotifyConfig
from holdfast.errors import ConfigError
from holdfast.model.cluster import JobKey
from holdfast.model.evidence import Severity
from holdfast.model.orders import Notify
from holdfast.model.plain_text import clean, printable
from holdfast.os.outbound import parse_allowed

GRAVITY = {severity: place for place, severity in enumerate(Severity)}
TITLE_MAX, TEXT_MAX = 200, 4000
CUT = "\n... (cut here; the whole notice stands in notices.jsonl of the controller's folder)"
DIGEST = "digest"
"""The topic of a message about several matters."""
DIGEST_FROM = 5
"""So many matters at once become one digest."""
CLOSING_MAX = 5
"""So many matters are closed by themselves between two other messages."""
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
    link: str = ""
    """Of its incident in the cockpit; empty: none."""
    asks: bool = False
    """A person must act."""


EXAMPLE = Notify(
    id="o1", cause=1, incident="i1", topic="i1", severity=Severity.ERROR, title="7(0) is requeued, held",
    text="Xid 74 on n1", job=JobKey("cluster", "7"), node="n1",
)  # fmt: skip
EXAMPLE_FACTS = Facts("Xid 74 on n1", "hardware", "gpu", "mei", is_over=True, steps=("Look.",), drill="xid_74")
EXAMPLE_LINKS = {"incident": "https://holdfast.example/incidents/i1", "dashboard": "https://grafana.example/d/1"}
"""Every field is set: a template that cannot be filled with these is wrong."""
TEMPLATE_ERRORS = (TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What a template can raise: a site's own may divide, or add a number to a text."""
TEMPLATE_HAS = (
    "it has notice (severity, title, text, job, node, topic, incident), "
    f"facts ({', '.join(Facts.__struct_fields__)}) and links ({', '.join(EXAMPLE_LINKS)})"
)

Numbered = tuple[int, Message]
"""A message and its number in the outbox."""


def check(config: NotifyConfig) -> None:
    """Raise ConfigError for what cannot work: names twice, quiet hours, zones, templates, addresses, `allow`."""
    try:
        parse_allowed(config.allow)
    except ValueError as error:
        said = f"[notify] allow: {str(error)!r} is not a host's name, an address or a network such as 10.0.0.0/8"
        raise ConfigError(said) from error
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
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(f"{place}: there is no time zone {one.zone!r}") from error
        try:
            _filled(one.template, EXAMPLE, EXAMPLE_FACTS, EXAMPLE_LINKS)
        except TEMPLATE_ERRORS as error:
            raise ConfigError(f"{place}: the template cannot be used: {error}; {TEMPLATE_HAS}") from error


def _filled(template: str, notice: Notify, facts: Facts, links: Mapping[str, str]) -> str:
    """The text of a notice. Raises one of `TEMPLATE_ERRORS`."""
    made = SandboxedEnvironment(undefined=StrictUndefined).from_string(template or TEMPLATE)
    return made.render(notice=notice, facts=facts, links=links)


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
    try:
        text = _filled(destination.template, notice, facts, links)
    except TEMPLATE_ERRORS as error:
        text = f"{notice.text}\n(the template of {destination.name} cannot be used: {error})"
    title = f"Resolved: {notice.title}" if facts.is_over else notice.title
    if facts.drill:
        title = f"Drill: {title}"
    return Message(
        notice.topic,
        notice.severity,
        _cut(clean(title), TITLE_MAX, "..."),
        _cut(printable(text).strip(), TEXT_MAX, CUT),
        facts.is_over,
        link=links["incident"],
        asks=notice.asks,
    )


def joined(messages: Sequence[Message], more: int = 0) -> Message:
    """Several messages as one: of one matter under its last title, of several as a digest, the gravest first.

    Args:
        messages: what `fitting` gave; nothing of it is left out.
        more: so many wait for the next message.
    """
    if len(messages) == 1:
        return messages[0]
    last, severity = messages[-1], max((one.severity for one in messages), key=GRAVITY.__getitem__)
    count = sum(one.count for one in messages)
    if len({one.topic for one in messages}) == 1:
        text = "\n\n".join(_part(one) for one in messages)
        asks = any(one.asks for one in messages)
        return Message(last.topic, severity, last.title, text, last.is_over, count, last.link, asks)
    ordered = sorted(messages, key=lambda one: -GRAVITY[one.severity])
    is_over = all(one.is_over for one in messages)
    title = f"{count} notices, {more} more follow" if more else f"{count} notices"
    return Message(DIGEST, severity, title, "\n".join(_digest_line(one) for one in ordered), is_over, count)


def fitting(waiting: Sequence[Numbered]) -> list[Numbered]:
    """The first of these that `joined` makes one message of at most TEXT_MAX characters; at least one."""
    is_digest = len({message.topic for _, message in waiting}) > 1
    gap, write = (1, _digest_line) if is_digest else (2, _part)
    found: list[Numbered] = []
    size = -gap
    for one in waiting:
        size += gap + len(write(one[1]))
        if found and size > TEXT_MAX:
            break
        found.append(one)
    # What was counted as lines may turn out to be of one matter only, whose texts are told.
    return fitting(found) if is_digest and len({message.topic for _, message in found}) == 1 else found


def batches(
    waiting: Sequence[Numbered], told: Container[str], *, only_from: Severity | None = None, is_digest: bool = False
) -> list[list[Numbered]]:
    """What goes out now, a list for each message; empty: nothing may.

    Args:
        waiting: what may be said at this hour, in order.
        told: topics that were told by themselves and are not over.
        only_from: the destination has had its messages of the hour: only this grave may go, what a
            person must act on, and what closes a matter.
        is_digest: all of it as one message, however few matters there are.
    """
    closing = dict.fromkeys(one.topic for _, one in waiting if one.is_over and one.topic in told)
    others = [one for one in waiting if one[1].topic not in closing and _goes_above_limit(one[1], only_from)]
    found: list[list[Numbered]] = []
    if others:
        if not is_digest and len({message.topic for _, message in others}) < DIGEST_FROM:
            others = [one for one in others if one[1].topic == others[0][1].topic]
        found.append(fitting(_gravest_first(others)))
    ends = ([one for one in waiting if one[1].topic == topic] for topic in list(closing)[:CLOSING_MAX])
    return [*found, *map(fitting, ends)]


def _goes_above_limit(message: Message, only_from: Severity | None) -> bool:
    return only_from is None or message.asks or GRAVITY[message.severity] >= GRAVITY[only_from]


def _gravest_first(waiting: Sequence[Numbered]) -> list[Numbered]:
    """By the gravest notice of each matter; within a matter the order stays."""
    gravest: dict[str, int] = {}
    for _, message in waiting:
        gravest[message.topic] = max(gravest.get(message.topic, 0), GRAVITY[message.severity])
    places = {topic: place for place, topic in enumerate(gravest)}
    return sorted(waiting, key=lambda one: (-gravest[one[1].topic], places[one[1].topic]))


def _digest_line(message: Message) -> str:
    return f"{message.severity.upper()}: {message.title} {message.link}".rstrip()


def _part(message: Message) -> str:
    return f"{message.title}\n{message.text}".strip()


def _cut(text: str, limit: int, mark: str) -> str:
    """At most `limit` characters; what is cut says so."""
    return text if len(text) <= limit else text[: limit - len(mark)] + mark
