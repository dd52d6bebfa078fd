"""Follows a certificate's files, so that a renewed one is served without a restart.

The listener of the API and what answers for a stand-by run it; each says itself how it takes a new certificate. Files
that cannot be served with change nothing and are logged once. Time passes in the asyncio loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from holdfast.errors import ConfigError, LinkError
from holdfast.os.tls import Stamp, TlsFiles, checked

LOOK_S = 1.0
"""Between two looks at the files."""

_log = structlog.get_logger("holdfast.api")


async def follow(files: TlsFiles, served: Stamp, renew: Callable[[], Awaitable[None]]) -> None:
    """Call `renew` whenever the files have changed and can be served with, until cancelled.

    Args:
        files: where the certificate stands.
        served: the stamp of what is served now.
        renew: serves with what the files hold now. Raises ConfigError: not before they change again. Raises LinkError:
            not this time.
    """
    while True:
        await asyncio.sleep(LOOK_S)
        stamp = files.stamp()
        if stamp == served:
            continue
        try:
            until = await asyncio.to_thread(checked, files)
            await renew()
        except (ConfigError, LinkError) as error:
            _log.error("the certificate was not renewed; the former one is served", why=str(error))
            if isinstance(error, ConfigError):
                served = stamp
            continue
        served = stamp
        _log.info("the certificate was renewed", certificate=str(files.cert), valid_until=until)
