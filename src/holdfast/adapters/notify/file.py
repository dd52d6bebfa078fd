"""Notices as JSON lines in a file, for people without a pager and as the record of what was told.

Called by the controller's executors. One line is one write, so a reader never sees half a notice.
"""

from __future__ import annotations

import os
from pathlib import Path

import structlog

from holdfast.errors import TemporaryOrderError
from holdfast.model.orders import Notify
from holdfast.model.wire import encode

_log = structlog.get_logger("holdfast.notice")


class FileNotifier:
    """A `ports.Notifier` that appends each notice to a file and says it in the log."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def send(self, notice: Notify) -> None:
        """Append the notice. Raises TemporaryOrderError when the file cannot be written now."""
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(descriptor, encode(notice) + b"\n")
            finally:
                os.close(descriptor)
        except OSError as error:
            raise TemporaryOrderError(f"notices cannot be written to {self._path}: {error.strerror}") from error
        _log.info("notice", title=notice.title, text=notice.text, severity=notice.severity.value, topic=notice.topic)
