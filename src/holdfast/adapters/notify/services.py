"""Handing messages to services, by Apprise: Slack, mail, SNS, PagerDuty, webhooks and some hundred more.

Where a service knows threads or keys for one matter, all messages of a matter share one: a mail's References, a Slack
thread (with a bot's token), PagerDuty's deduplication key, which also resolves. Called by `outbox.py` and by
`holdfast notify test`. Time passes while a service answers, at most `LIMIT_S`.
"""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

from holdfast.adapters.notice_settings import Destination
from holdfast.adapters.notify.routing import Message
from holdfast.errors import ConfigError, TemporaryOrderError
from holdfast.model.evidence import Severity

LIMIT_S = 60.0
DOMAIN = "holdfast.local"
"""Of the message ids by which mails of one matter refer to each other."""


class AppriseDeliverer:
    """An `outbox.Deliverer`."""

    async def deliver(self, destination: Destination, message: Message, thread: str) -> str:
        """See `outbox.Deliverer.deliver`."""
        try:
            async with asyncio.timeout(LIMIT_S):
                return await asyncio.to_thread(_send, destination, message, thread)
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
    return service


def _send(destination: Destination, message: Message, thread: str) -> str:
    import apprise  # noqa: PLC0415 - as above

    try:
        service = service_of(destination)
    except ConfigError as error:
        raise TemporaryOrderError(str(error)) from error
    named = _join_thread(service, message, thread)
    kinds = {Severity.INFO: "info", Severity.WARNING: "warning", Severity.ERROR: "failure", Severity.FATAL: "failure"}
    kind = apprise.NotifyType("success" if message.is_over else kinds[message.severity])
    try:
        taken = service.notify(title=message.title, body=message.text, notify_type=kind)
    except Exception as error:
        # A plugin's own bug is as good as a refusal: the notice stays, and is tried again.
        raise TemporaryOrderError(f"{destination.name}: {type(error).__name__}") from error
    if not taken:
        raise TemporaryOrderError(f"{destination.name} did not take it")
    return named() if callable(named) else ""


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
