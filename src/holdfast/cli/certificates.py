"""Certificates that holdfast.toml and the environment name, and when they end: lines of `holdfast doctor`."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from pathlib import Path

from holdfast.adapters.clock import SystemClock
from holdfast.cli.machine import Fact, State
from holdfast.errors import ConfigError
from holdfast.os.tls import CERT_FILE, DAY_S, TELL_DAYS, Trust, authority_end, checked, checked_client, trust_of
from holdfast.wiring.settings import load_settings, tls_files


def certificates(now: float | None = None) -> list[Fact]:
    """A fact for each certificate that is named here; none where none is."""
    try:
        settings = load_settings()
        served = tls_files(settings)
    except ConfigError:
        return []  # every command that needs the file says what is wrong with it
    said = Trust(settings.path(settings.config.ca_file), settings.path(settings.config.cert_file))
    trust = trust_of(os.environ, said)
    now = SystemClock().now() if now is None else now
    found = []
    if served is not None:
        found.append(
            _fact("certificate", served.cert, "the controller's HTTPS", lambda: _seconds(checked(served)), now)
        )
    if (own := trust.cert_file) is not None:
        found.append(
            _fact("client certificate", own, f"this client ({CERT_FILE})", lambda: _seconds(checked_client(own)), now)
        )
    if (ca := trust.ca_file) is not None:
        found.append(_fact("authority", ca, "checking the controller's certificate", lambda: authority_end(ca), now))
    return found


def _seconds(written: str) -> float:
    return float(ssl.cert_time_to_seconds(written))


def _fact(name: str, file: Path, serves: str, end: Callable[[], float], now: float) -> Fact:
    try:
        days = int((end() - now) // DAY_S)
    except ConfigError as error:
        return Fact(name, State.BROKEN, str(error), serves, f"renew or replace {file}")
    if days < 0:
        return Fact(name, State.BROKEN, f"{file} has expired", serves, f"renew {file}")
    state = State.OK if days >= max(TELL_DAYS) else State.MISSING
    return Fact(name, state, f"{file}, {days} days left", serves, f"renew {file} soon" if state is not State.OK else "")
