"""Logins, users and addresses that holdfast.toml, agent.toml and the environment name: lines of `holdfast doctor`."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from holdfast.adapters.policy_files import packaged_presets, read_policy
from holdfast.adapters.probes.config import load_config
from holdfast.api.auth import too_few_people
from holdfast.cli.machine import Fact, State
from holdfast.errors import ConfigError, LinkError, RefusedError
from holdfast.model.policy import PolicySet
from holdfast.os import munge
from holdfast.os.confined import NOBODY, user_ids
from holdfast.os.tls import Trust, trust_of
from holdfast.os.unix_sockets import SITE_SOCKET, check_place, listener, socket_of
from holdfast.wiring.notices import check_destinations
from holdfast.wiring.settings import Settings, load_settings


def credentials() -> list[Fact]:
    """A fact for each that is named here; none where none is."""
    try:
        settings = load_settings()
        slurm = settings.config.slurm
        trust = trust_of(os.environ, Trust(munge=slurm.munge_socket if slurm.munge else None))
    except ConfigError:
        return []  # every command that needs the file says what is wrong with it
    return [*_socket(settings), *_munge(trust.munge), *_notices(settings), *_parser_user(), *_people(settings)]


def _socket(settings: Settings) -> list[Fact]:
    """Does the controller of this machine answer at its socket, where one is named or systemd has made its folder?"""
    named = socket_of(os.environ.get("HOLDFAST_CONTROLLER", "") or settings.config.controller)
    path = named or SITE_SOCKET
    if named is None and not path.parent.exists():
        return []
    name, serves = "local socket", "users of this machine without tokens"
    try:
        check_place(path)
        uid = listener(path)
    except LinkError as error:
        advice = "start the controller of this machine, or name another address"
        return [Fact(name, State.MISSING, str(error), serves, advice)]
    except RefusedError as error:
        return [Fact(name, State.BROKEN, str(error), serves, "docs/security.md, Local socket")]
    return [Fact(name, State.OK, f"{path}, of uid {uid}", serves)]


def _munge(socket: str | None) -> list[Fact]:
    """Does the munged that logins are made with sign?"""
    if socket is None:
        return []
    name, serves = "munge login", "agents, launchers and users without tokens"
    where = socket or "munge's own socket"
    try:
        asyncio.run(munge.encode(b"", socket))
    except LinkError as error:
        advice = f"is munged running, and is {where} its socket? Without it, name a token"
        return [Fact(name, State.BROKEN, str(error), serves, advice)]
    cluster = munge.slurm_cluster(os.environ)
    if not cluster:
        return [Fact(name, State.MISSING, f"{where} signs, for no cluster", serves, "set HOLDFAST_CLUSTER")]
    return [Fact(name, State.OK, f"{where} signs, for cluster {cluster}", serves)]


def _notices(settings: Settings) -> list[Fact]:
    """Would a destination be refused as it is written?"""
    config = settings.config.notify
    if not config.to:
        return []
    try:
        check_destinations(config)
    except ConfigError as error:
        return [Fact("notices", State.BROKEN, str(error), "telling people", "holdfast notify test")]
    return [Fact("notices", State.OK, ", ".join(one.name for one in config.to), "telling people")]


def _parser_user() -> list[Fact]:
    """Is there the user that agent.toml has the parser of logs become?"""
    named = os.environ.get("HOLDFAST_AGENT_CONFIG")
    try:
        user = load_config(Path(named) if named else None).parser_user
    except ConfigError:
        return []
    if user == NOBODY:
        return []
    try:
        uid, _ = user_ids(user)
    except KeyError:
        found = f"there is no user {user!r}"
        advice = f"name another parser_user in agent.toml, or `useradd --system {user}`"
        return [Fact("parser user", State.BROKEN, found, "judging lines of logs", advice)]
    if uid == 0:
        advice = "name a user without rights in agent.toml, or leave parser_user out"
        return [Fact("parser user", State.BROKEN, f"{user} is root", "judging lines of logs", advice)]
    return [Fact("parser user", State.OK, f"{user} (uid {uid})", "judging lines of logs")]


def people_missing(settings: Settings, policies: PolicySet) -> str:
    """Why nobody can give what is proposed under these policies; empty: they can, or no token book is at hand.

    Raises:
        ConfigError: the book cannot be read as one.
    """
    folder = settings.path(settings.config.dir)
    book = folder / "controller" / "tokens" if folder is not None else None
    if book is None or not os.access(book, os.R_OK):
        return ""
    return too_few_people(policies, book, time.time(), book.stat().st_uid)


def _people(settings: Settings) -> list[Fact]:
    """May as many people approve as the policy asks for?"""
    try:
        policies, _ = read_policy(settings.path(settings.config.policy), packaged_presets())
        why = people_missing(settings, policies)
    except ConfigError as error:
        return [Fact("approvals", State.BROKEN, str(error), "approving what is proposed")]
    if not why:
        return []
    found, _, advice = why.partition("; ")
    return [Fact("approvals", State.BROKEN, found, "approving what is proposed", advice)]
