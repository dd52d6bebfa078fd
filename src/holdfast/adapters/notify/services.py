"""Handing messages to services, by Apprise: Slack, mail, SNS, PagerDuty, webhooks and some hundred more.

Where a service knows threads or keys for one matter, all messages of a matter share one: a mail's References, a Slack
thread (with a bot's token), PagerDuty's deduplication key, which also resolves. What others wrote reaches a service as
text: it calls nobody, and is no link. Only public addresses are reached, and those of `[notify] allow`; a redirect is
not followed. Called by `outbox.py` and by `holdfast notify test`. Time passes while a service answers, at most
`LIMIT_S`.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from holdfast.adapters.notice_settings import Destination
from holdfast.adapters.notify.routing import Message
from holdfast.errors import ConfigError, TemporaryOrderError
from holdfast.model.evidence import Severity
from holdfast.os.outbound import Allowed, address_of, only_to, parse_allowed, refusal, resolved

LIMIT_S = 60.0
DOMAIN = "holdfast.local"
"""Of the message ids by which mails of one matter refer to each other."""
FOLLOWS_REDIRECTS = False
"""A service that has moved is given its new address by whoever runs the site."""
NO_CHAT = frozenset({
    "NotifyEmail", "NotifyForm", "NotifyJSON", "NotifyPagerDuty", "NotifySES", "NotifySNS", "NotifySyslog", "NotifyXML",
})  # fmt: skip
"""Services that know no mentions and no markup in plain text; every other one is taken for a chat."""
_LIVE = str.maketrans({"<": "\u2039", ">": "\u203a"})
_MENTION = re.compile(r"@(?=[\w*])|\](?=\()")


class AppriseDeliverer:
    """An `outbox.Deliverer`.

    Args:
        allow: `[notify] allow`, as `routing.check` has checked it.
    """

    def __init__(self, allow: Iterable[str] = ()) -> None:
        self._allowed = parse_allowed(allow)

    async def refused(self, destination: Destination) -> str:
        """See `outbox.Deliverer.refused`."""
        return await asyncio.to_thread(_refused, destination, self._allowed)

    async def deliver(self, destination: Destination, message: Message, thread: str) -> str:
        """See `outbox.Deliverer.deliver`."""
        try:
            async with asyncio.timeout(LIMIT_S):
                return await asyncio.to_thread(_send, destination, message, thread, self._allowed)
        except TimeoutError as error:
            raise TemporaryOrderError(f"{destination.name} did not answer within {LIMIT_S:g} s") from error


def service_of(destination: Destination) -> Any:
    """The Apprise plugin of a destination.

    Raises:
        ConfigError: the address is none that Apprise knows, or its file cannot be read. Never says the address: it
            holds secrets.
    """
    import apprise  # noqa: PLC0415 - takes half a second, and few commands send notices

    url = destination.url
    if destination.url_file:
        path = Path(destination.url_file).expanduser()
        try:
            url = path.read_text(encoding="utf-8").strip().splitlines()[0]
        except (OSError, IndexError, UnicodeDecodeError) as error:
            said = f"[[notify.to]] {destination.name!r}: its url_file cannot be read"
            raise ConfigError(said, file=str(path)) from error
    service = apprise.Apprise.instantiate(url, suppress_exceptions=True)
    if service is None:
        raise ConfigError(f"[[notify.to]] {destination.name!r}: its URL is not one that Apprise understands")
    if destination.endpoint and hasattr(service, "notify_url"):
        service.notify_url = destination.endpoint
    service.redirects = FOLLOWS_REDIRECTS
    return service


def check_address(destination: Destination, allow: Iterable[str]) -> None:
    """Raise ConfigError where the destination is written as an address that is refused. Resolves no names."""
    host = _host_of(service_of(destination), destination)
    why = refusal(host, parse_allowed(allow).networks) if host and address_of(host) is not None else ""
    if why and host.lower() not in parse_allowed(allow).hosts:
        raise ConfigError(_said(destination, why))


def _refused(destination: Destination, allowed: Allowed) -> str:
    try:
        host = _host_of(service_of(destination), destination)
    except ConfigError as error:
        return str(error)
    found = [] if host.lower() in allowed.hosts else [refusal(one, allowed.networks) for one in resolved(host)]
    return _said(destination, found[0]) if found and all(found) else ""


def _said(destination: Destination, why: str) -> str:
    return f"[[notify.to]] {destination.name!r}: {why}; name the host or its network in [notify] allow to send there"


def _host_of(service: Any, destination: Destination) -> str:
    """The host that the service's messages go to, where its URL names one; empty: the service has its own."""
    if destination.endpoint:
        return urlsplit(destination.endpoint).hostname or ""
    host = getattr(service, "smtp_host", "") or (service.host if "host" in service.template_tokens else "")
    return str(host or "").strip("[]")


def _send(destination: Destination, message: Message, thread: str, allowed: Allowed) -> str:
    import apprise  # noqa: PLC0415 - as above

    try:
        service = service_of(destination)
    except ConfigError as error:
        raise TemporaryOrderError(str(error)) from error
    named = _join_thread(service, message, thread)
    kinds = {Severity.INFO: "info", Severity.WARNING: "warning", Severity.ERROR: "failure", Severity.FATAL: "failure"}
    kind = apprise.NotifyType("success" if message.is_over else kinds[message.severity])
    words = _as_text(type(service).__name__, destination.mention, message)
    with only_to(allowed) as guard:
        try:
            taken = service.notify(notify_type=kind, **words)
        except Exception as error:
            # A plugin's own bug is as good as a refusal: the notice stays, and is tried again.
            raise TemporaryOrderError(f"{destination.name}: {type(error).__name__}") from error
    if not taken and guard.refused:
        raise TemporaryOrderError(_said(destination, guard.refused))
    if not taken:
        raise TemporaryOrderError(f"{destination.name} did not take it")
    return named() if callable(named) else ""


def _as_text(service: str, mention: str, message: Message) -> dict[str, Any]:
    """Title, body and the body's format. In a chat nothing that others wrote is a mention, a link or a tag."""
    import apprise  # noqa: PLC0415 - as above

    text = {"body_format": apprise.NotifyFormat.TEXT}
    if service in NO_CHAT:
        return {"title": message.title, "body": message.text, **text}
    title, body = (_MENTION.sub("\\g<0>\u200b", one.translate(_LIVE)) for one in (message.title, message.text))
    # A mention is the site's own markup: the service has to read it.
    return {"title": title, "body": f"{mention} {body}"} if mention else {"title": title, "body": body, **text}


def _join_thread(service: Any, message: Message, thread: str) -> Any:
    """Have the message join its matter's thread; returns what tells the thread's name afterwards."""
    matter = hashlib.sha256(message.topic.encode()).hexdigest()[:32]
    name = type(service).__name__
    if name == "NotifyEmail":
        anchor = f"<{matter}@{DOMAIN}>"
        service.headers.update({"References": anchor, "In-Reply-To": anchor})
    elif name == "NotifyPagerDuty":
        service.dedup = matter
        service.action = "resolve" if message.is_over else "trigger"
    elif name == "NotifyJSON":
        service.payload_extras.update({"topic": message.topic, "severity": message.severity.value})
        service.payload_extras["resolved"] = str(message.is_over).lower()
    elif name == "NotifySlack" and getattr(service, "mode", "") == "bot":
        return _slack_thread(service, thread)
    return None


def _slack_thread(service: Any, thread: str) -> Any:
    """Slack answers with the message's `ts`, which is the thread's name; later messages name it behind the channel."""
    if thread:
        service.channels = [f"{channel}:{thread}" for channel in service.channels]
        return lambda: thread
    seen: list[str] = []
    plain = service._send  # noqa: SLF001 - Apprise keeps the answer to itself

    def keep(*words: Any, **more: Any) -> Any:
        answer = plain(*words, **more)
        if isinstance(answer, dict) and answer.get("ts"):
            seen.append(str(answer["ts"]))
        return answer

    service._send = keep  # noqa: SLF001 - as above
    return lambda: seen[0] if seen else ""
