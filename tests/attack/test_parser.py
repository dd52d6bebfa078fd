"""A job that prints what its node's agent fails at, and so takes over the process that reads it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from attack_fixture import Attempt, only_root
from holdfast.adapters.catalogue_files import read_catalogue, read_matcher
from holdfast.adapters.clock import SystemClock
from holdfast.agent import parser as parser_of
from holdfast.agent import parsing
from holdfast.agent.parser import ParserProcess
from holdfast.agent.parsing import Answer, Judged, told_of
from holdfast.detect.catalogue import StreamKind
from holdfast.detect.matcher import Match, StreamSource
from holdfast.errors import WireError
from holdfast.os.confined import Confined

OPEN = Confined(uid=0, has_rights=True, no_new_privileges=False, system_calls=False)
KERNEL = StreamSource(kind=StreamKind.KERNEL, node="node07")
XID = b"NVRM: Xid (PCI:0000:53:00): 79, pid=1234, GPU has fallen off the bus.\n"


def succeeds(deed: Callable[[], object]) -> bool:
    """Whether a parser that was taken over can do this."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            parsing.confine("nobody", 256 << 20)
            deed()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def start_a_program() -> None:
    os.execv("/bin/true", ["true"])


DEEDS: dict[str, Callable[[Path, int], object]] = {
    "read root's files": lambda secret, _port: secret.read_bytes(),
    "open a file that all may read": lambda _secret, _port: Path("/etc/passwd").read_bytes(),
    "write": lambda secret, _port: secret.with_name("planted").write_text("x"),
    "connect": lambda _secret, port: socket.create_connection(("127.0.0.1", port), 5.0),
    "start a program": lambda _secret, _port: start_a_program(),
    "make a process": lambda _secret, _port: os.fork() or os._exit(0),
    "signal the agent": lambda _secret, _port: os.kill(os.getppid(), signal.SIGCONT),
    "read the agent's environment": lambda _s, _p: Path(f"/proc/{os.getppid()}/environ").read_bytes(),
    "become root again": lambda _secret, _port: os.setresuid(0, 0, 0),
}


@pytest.mark.attempt(
    actor="A job, towards the root agent of its node",
    asset="the agent",
    removed="agent.parsing.confine",
)
@pytest.mark.parametrize("deed", DEEDS)
def test_whoever_takes_the_parser_over_has_nothing(attempt: Attempt, tmp_path: Path, deed: str) -> None:
    """Take the parser over, and do with it what root's own process could."""
    only_root("the attack is on a root agent")
    attempt.without(parsing, "confine", lambda _user, _memory: OPEN)
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as server:
        attempt.judge(succeeded=succeeds(lambda: DEEDS[deed](secret, server.getsockname()[1])))


@pytest.mark.attempt(
    actor="A job, towards the root agent of its node",
    asset="the agent",
    removed="agent.parser._PATHS",
)
def test_it_gets_none_of_the_agents_environment(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the agent's token in the environment of a parser that was taken over."""
    attempt.without(parser_of, "_PATHS", (*os.environ, "HOLDFAST_TOKEN"))
    monkeypatch.setenv("HOLDFAST_TOKEN", "secret")

    async def body() -> bytes:
        parser = ParserProcess(read_catalogue(), SystemClock())
        work = asyncio.create_task(parser.run())
        try:
            async with asyncio.timeout(60):
                while parser.why:
                    await asyncio.sleep(0.01)
            return Path(f"/proc/{parser.program.process.pid}/environ").read_bytes()
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    attempt.judge(succeeded=b"secret" in asyncio.run(body()))


@pytest.mark.attempt(
    actor="A job, towards the root agent of its node",
    asset="the agent",
    removed="agent.parser.is_of_a_code",
)
def test_it_cannot_tell_of_a_rule_that_nobody_wrote(attempt: Attempt) -> None:
    """Tell of a rule that the agent's own catalogue does not have, by a parser that was taken over."""
    attempt.without(parser_of, "is_of_a_code", lambda _rule: True)
    matcher = read_matcher(read_catalogue())
    parser = ParserProcess(matcher.catalogue, SystemClock())
    found: list[Match] = []
    stream = parser.stream(KERNEL, "kmsg", lambda came: found.extend(came.matches))
    stream.feed(XID, 1.0)
    parser._next()
    lie = msgspec.structs.replace(told_of(matcher.stream(KERNEL).feed(XID, 1.0)[0]), rule="site.replace_all")
    with contextlib.suppress(WireError):
        parser._answered(Answer(parts=(Judged(told=(lie,), pending=0, again=0),)))
    attempt.judge(succeeded=bool(found))
