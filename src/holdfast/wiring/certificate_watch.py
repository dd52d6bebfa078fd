"""Tells people, and `/metrics`, when the controller's certificate ends: 30 days before, and 7.

`wiring/controller.py` runs it beside a controller that leads and one that stands by: each machine has a certificate of
its own, and a standby's is needed when nobody looks at it. What was told is kept in the controller's folder, so that a
restart does not tell it again; a renewed certificate is another matter. Times are the clock port's.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import structlog
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from holdfast.errors import ConfigError, OrderError
from holdfast.model.evidence import Severity
from holdfast.model.orders import Notify
from holdfast.os.files import text_of, write_whole
from holdfast.os.tls import DAY_S, TELL_DAYS, TlsFiles, checked
from holdfast.ports import Clock, Notifier

LOOK_S = 3600.0
TOLD_FILE = "certificate-told"

_log = structlog.get_logger("holdfast.controller")


class CertificateWatch(Collector):
    """See the module.

    Args:
        files: what the controller serves with; None: nothing is watched.
        notifiers: tell people.
        folder: the controller's own.
        clock: its times.
    """

    def __init__(self, files: TlsFiles | None, notifiers: Sequence[Notifier], folder: Path, clock: Clock) -> None:
        self._files = files
        self._notifiers = notifiers
        self._told = folder / TOLD_FILE
        self._clock = clock
        self.ends_at = 0.0
        """Unix seconds; 0.0: not known."""

    def collect(self) -> Iterator[Metric]:
        """The family of `/metrics`; none without a certificate."""
        if self.ends_at:
            text = "Unix time at which the certificate that the controller serves with ends."
            yield GaugeMetricFamily("holdfast_certificate_end_seconds", text, value=self.ends_at)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Look at once, then every hour, inside the block."""
        task = asyncio.create_task(self._run(), name="certificate-end")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _run(self) -> None:
        while self._files is not None:
            await self.look()
            await self._clock.sleep(LOOK_S)

    async def look(self) -> None:
        """Read the certificate, and tell of an end that has come near since the last look."""
        if self._files is None:
            return
        try:
            self.ends_at = float(ssl.cert_time_to_seconds(await asyncio.to_thread(checked, self._files)))
        except ConfigError as error:
            _log.error("the certificate cannot be served with", why=str(error))
        left_s = self.ends_at - self._clock.now()
        due = next((days for days in TELL_DAYS if left_s < days * DAY_S), None)
        mark = f"{self.ends_at:.0f} {due}"
        if not self.ends_at or due is None or text_of(self._told).strip() == mark:
            return
        notice = _notice(self._files.cert, mark, due, left_s)
        try:
            for notifier in self._notifiers:
                await notifier.send(notice)
            write_whole(self._told, mark.encode())
        except (OrderError, OSError) as error:
            _log.warning("the certificate's end could not be told", why=str(error))


def _notice(file: Path, mark: str, due: int, left_s: float) -> Notify:
    days = int(left_s // DAY_S)
    when = f"ends in {days} {'day' if days == 1 else 'days'}" if left_s > 0 else "has expired"
    return Notify(
        id=f"certificate:{mark.replace(' ', ':')}",
        cause=0,
        topic=f"certificate:{socket.gethostname()}",
        severity=Severity.WARNING if due > min(TELL_DAYS) else Severity.ERROR,
        title=f"The controller's certificate {when}",
        text=f"{file} on {socket.gethostname()}: renew it; a new one is served without a restart. Without it no agent, "
        "launcher or command reaches this controller.",
    )
