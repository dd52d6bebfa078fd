"""A job that prints what its node's agent fails at, and so takes over the process that reads it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from attack_fixture import Attempt, only_root
from holdfast.adapters.catalogue_files import read_catalogue, read_matcher
from holdfast.adapters.clock import SystemClock
from holdfast.adapters.probes.check import LogFile
from holdfast.adapters.slurm.open_files import OpenJob
from holdfast.agent import parser as parser_of
from holdfast.agent import parsing
from holdfast.agent.job_logs import LogWatch
from holdfast.agent.kernel_log import KernelLog
from holdfast.agent.node_facts import GpuTable, NodeIdentity
from holdfast.agent.parser import ParserProcess
from holdfast.agent.parsing import Answer, Judged, told_of
from holdfast.agent.slurm_output import SlurmOutput
from holdfast.agent.syslog_lines import KernelLines
from holdfast.detect.catalogue import StreamKind
from holdfast.detect.hyperpod_rules import RuleFinder
from holdfast.detect.matcher import LineStream, Match, StreamSource
from holdfast.errors import WireError
from holdfast.os.confined import Confined
from parsers import ParserInside

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
    stream = parser.stream(parsing.Origin(KERNEL), "kmsg", lambda came: found.extend(came.matches))
    stream.feed(XID, 1.0)
    parser._next()
    lie = msgspec.structs.replace(told_of(matcher.stream(KERNEL).feed(XID, 1.0)[0]), rule="site.replace_all")
    with contextlib.suppress(WireError):
        parser._answered(Answer(parts=(Judged(told=(lie,), pending=0, again=0),)))
    attempt.judge(succeeded=bool(found))


@pytest.mark.attempt(
    actor="A job, towards the root agent of its node", asset="the agent", removed="agent.parser.ParserProcess"
)
def test_the_agent_itself_judges_no_line(attempt: Attempt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have patterns of the catalogue, of log rules and of syslog's stamps meet lines of jobs in root's own process."""
    matcher = read_matcher(read_catalogue())
    attempt.without(parser_of, "ParserProcess", lambda _catalogue, _clock: ParserInside(matcher))
    judged: set[str] = set()
    for kind, name in ((LineStream, "feed"), (RuleFinder, "read"), (KernelLines, "sieve")):
        its = getattr(kind, name)

        def noted(self, *given, its=its):
            judged.add(type(self).__name__)
            return its(self, *given)

        monkeypatch.setattr(kind, name, noted)
    here, found, clock = NodeIdentity(name="node07", boot_id="b"), [], SystemClock()
    (tmp_path / "rules.yaml").write_text("- {name: bad, logPattern: '.*segfault.*', faultOnMatch: true}\n")
    log, out, messages = (tmp_path / name for name in ("one.log", "two.out", "messages"))
    messages.touch()

    async def body() -> None:
        parser = parser_of.ParserProcess(matcher.catalogue, clock)
        wanted = LogFile(path=f"{tmp_path}/*.log", log_rules=str(tmp_path / "rules.yaml"))
        watch = LogWatch([wanted], identity=here, parser=parser, clock=clock, on_finding=found.append)
        told = lambda event: found.append(event.finding)  # noqa: E731
        slurm = SlurmOutput(node="node07", source="a", parser=parser, clock=clock, report=told, look=list)
        kernel = KernelLog(
            messages, identity=here, gpus=GpuTable({}), parser=parser, clock=clock, on_finding=found.append,
            is_syslog=True,
        )  # fmt: skip
        kernel.start()
        work = [asyncio.create_task(one.run()) for one in (parser, watch, slurm)]
        try:
            async with asyncio.timeout(60):
                while watch._first:
                    await asyncio.sleep(0.001)
                for path in (log, out):
                    path.write_bytes(b"Rank0: (1) segmentation fault: artificial segfault\n")
                stamp = datetime.fromtimestamp(clock.now(), UTC).isoformat().encode()
                messages.write_bytes(stamp + b" n1 kernel: " + XID)
                watch.find()
                job = OpenJob(
                    job_id="1", cluster="c", node="node07", users=frozenset({os.geteuid()}), files=(str(out),)
                )
                slurm.take([job])
                while len({(one.rule, one.place.path) for one in found}) < 4:
                    await asyncio.sleep(0.005)
        finally:
            for one in work:
                one.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            kernel.close()

    asyncio.run(body())
    assert not judged or judged == {"LineStream", "RuleFinder", "KernelLines"}
    attempt.judge(succeeded=bool(judged))
