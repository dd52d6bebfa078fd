"""A user of a node who has the kernel's log say that the node's GPU is lost, to have the node taken away from others."""

from __future__ import annotations

import asyncio
import os
import re
import time
from pathlib import Path

import pytest

from attack_fixture import Attempt
from holdfast.adapters.catalogue_files import read_catalogue, read_matcher
from holdfast.adapters.clock import SystemClock
from holdfast.adapters.kernel_journal import JOURNAL
from holdfast.adapters.kernel_record import parse_record
from holdfast.adapters.probes import sysfs_reading
from holdfast.agent import kernel_log, node_loop, process
from holdfast.agent.kernel_log import RESET_MARK, KernelLog
from holdfast.agent.node_facts import GpuTable, NodeIdentity
from holdfast.agent.process import AgentOptions, build_agent
from holdfast.detect import matcher as matching
from holdfast.detect.matcher import Matcher
from holdfast.model.evidence import Finding, Role
from parsers import ParserInside

LOST = "NVRM: Xid (PCI:0000:65:00): 79, pid=1, GPU has fallen off the bus."


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    return read_matcher(read_catalogue())


def log_of(path: Path, matcher: Matcher, found: list[Finding], **how: bool) -> KernelLog:
    return KernelLog(
        path,
        identity=NodeIdentity(name="node07", boot_id="boot-1"),
        gpus=GpuTable({"0000:65:00": 3}),
        parser=ParserInside(matcher),
        clock=SystemClock(),
        on_finding=found.append,
        **how,
    )


def roots(found: list[Finding]) -> list[str]:
    return [finding.rule for finding in found if finding.role is Role.ROOT and finding.rule.startswith("nvidia.")]


# --- what any user can have the kernel itself print ---

PRINTED = {
    "mount option": 'overlayfs: unrecognized mount option "{}" or missing value',
    "mount folder": "overlayfs: failed to resolve '{}': -2",
    "mount folder, older": "overlayfs: missing 'lowerdir' in {{{}}}",
    "program": "process 'sh' launched '/tmp/{}' with NULL argv: empty string added",
    "control group": "Memory cgroup stats for /user.slice/{}:",
    "input device": "input: {} as /devices/virtual/input/input9",
    "USB device": "usb 1-1: Product: {}",
    "audit": 'audit: type=1400 audit(1.1:2): apparmor="DENIED" operation="open" name="{}" pid=1',
}
DRESSED = ["{}", "x: {}", "[   12.000000] {}", "Nov 27 10:00:00 node07 kernel: {}", "[rank0]: {}", "4,1,1,-;{}"]


@pytest.mark.attempt(
    actor="A user without any right, by way of the kernel's log", asset="the node", removed="detect.matcher.own_part"
)
@pytest.mark.parametrize("dressed", DRESSED)
@pytest.mark.parametrize("way", PRINTED)
def test_what_the_kernel_quotes_is_not_its_word(
    attempt: Attempt, matcher: Matcher, tmp_path: Path, way: str, dressed: str
) -> None:
    """Each of these messages is the kernel's, of facility 0, and holds a text that a user without any right has chosen."""
    attempt.without(matching, "own_part", lambda body: len(body) + 1)
    found: list[Finding] = []
    log = log_of(tmp_path / "kmsg", matcher, found)
    text = PRINTED[way].format(dressed.format(LOST))
    record = parse_record(f"3,42,1500000,-;{text}\n".encode())
    assert record is not None
    log.on_record(record, 100.0)
    attempt.judge(succeeded=bool(roots(found)))


@pytest.mark.parametrize("prefix", ["", "[   12.000000] ", "[Sun Feb 23 16:24:18 2025] ", "nvidia 0000:65:00.0: "])
def test_what_the_driver_says_counts(matcher: Matcher, tmp_path: Path, prefix: str) -> None:
    """With the quotes and equal signs that drivers use themselves."""
    for text in (LOST, "NVRM: Xid (PCI:0000:65:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."):
        found: list[Finding] = []
        log = log_of(tmp_path / "kmsg", matcher, found)
        record = parse_record(f"3,42,1500000,-;{prefix}{text}\n".encode())
        assert record is not None
        log.on_record(record, 100.0)
        assert roots(found) == ["nvidia.xid.79"]


def test_every_rule_of_hardware_is_still_found(matcher: Matcher) -> None:
    """Of the catalogue's examples of what kernels print, none is taken for a quotation."""
    kernels = re.compile(
        r"^(?:\[[^]]*\] )?(?:NVRM|nvidia-nvswitch|mce|EDAC|pcieport|nvme|mlx5|EXT4|XFS|Out of memory|oom-kill)"
    )
    examples = [text for rule in matcher.catalogue.scanned for text in rule.matches if kernels.match(text)]
    assert len(examples) >= 20
    for text in examples:
        body = matching.take_apart(text).body
        assert matching.own_part(body) >= min(8, len(body)), text


# --- what programs write there ---


@pytest.mark.attempt(
    actor="A user without any right, by way of the kernel's log",
    asset="the node",
    removed="agent.kernel_log.is_kernels",
)
def test_a_program_does_not_speak_as_the_kernel(attempt: Attempt, matcher: Matcher, tmp_path: Path) -> None:
    """A service that repeats what its users say into /dev/kmsg has the facility of a program, which the kernel sees to."""
    attempt.without(kernel_log, "is_kernels", lambda _record, _identity: True)
    found: list[Finding] = []
    log = log_of(tmp_path / "kmsg", matcher, found)
    record = parse_record(f"12,42,1500000,-;{LOST}\n".encode())
    assert record is not None
    log.on_record(record, 100.0)
    attempt.judge(succeeded=bool(roots(found)))


def test_a_node_that_is_open_to_drills_hears_root(matcher: Matcher, tmp_path: Path) -> None:
    """`echo NVRM... > /dev/kmsg` is how people try it: on such a node it counts."""
    drilled = NodeIdentity(name="node07", boot_id="boot-1", drill_ok=True)
    record = parse_record(f"12,42,1500000,-;{LOST}\n".encode())
    assert record is not None
    assert kernel_log.is_kernels(record, drilled)


@pytest.mark.attempt(
    actor="A user without any right, by way of the kernel's log",
    asset="the node",
    removed="adapters.probes.sysfs_reading.kernels_text",
)
@pytest.mark.parametrize("line", [f"12,42,15,-;{LOST}", f"3,42,15,-;overlayfs: option x;{LOST}", f" KEY=x;{LOST}"])
def test_the_check_of_the_kernel_log_is_not_told_by_users(attempt: Attempt, line: str) -> None:
    """`holdfast check kernel-xid` reads records, too: by their first semicolon, and the kernel's alone."""
    attempt.without(sysfs_reading, "kernels_text", lambda raw, **_named: raw.rpartition(b";")[2])
    text = sysfs_reading.kernels_text(line.encode())
    attempt.judge(succeeded=text.startswith(b"NVRM"))


@pytest.mark.parametrize("number", ["-1", "+6", "6_0", " 6", "9" * 5000, "6.0", ""])
def test_a_record_has_the_kernels_numbers_or_is_none(number: str) -> None:
    """The agent and `holdfast check kernel-xid` read records by one function; thousands of digits end neither."""
    line = f"{number},42,15,-;{LOST}".encode()
    assert parse_record(line) is None
    assert sysfs_reading.kernels_text(line) == b""
    assert sysfs_reading.kernels_text(line, is_device=False) == line


# --- syslog's files, where `logger -t kernel` writes ---


def forged() -> str:
    """What `logger -t kernel` leaves in /var/log/messages."""
    return time.strftime("%b %d %H:%M:%S", time.localtime()) + f" node07 kernel: {LOST}\n"


def agent_options(folder: Path, **more: object) -> AgentOptions:
    config = folder / "agent.toml"
    config.write_text("")
    named = {"controller": "http://127.0.0.1:9", "node": "node07", "state_dir": folder / "state", "config": config}
    return AgentOptions(checks=False, **named | more)


@pytest.mark.attempt(
    actor="A user without any right, by way of the kernel's log", asset="the node", removed="agent.node_loop.as_context"
)
def test_where_the_device_is_closed_syslog_moves_no_node(
    attempt: Attempt, matcher: Matcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent without rights reads what it can, and takes it as context: the node is neither drained nor replaced."""
    attempt.without(node_loop, "as_context", lambda finding: finding)
    messages = tmp_path / "messages"
    messages.touch()
    monkeypatch.setattr(process, "DEFAULT_KERNEL_LOG", tmp_path / "closed")
    monkeypatch.setattr(process, "SYSLOGS", (messages,))
    monkeypatch.setattr(process, "can_read", lambda: False)
    monkeypatch.setattr(process, "read_catalogue", lambda _folders: None)
    monkeypatch.setattr(process, "ParserProcess", lambda *_given: ParserInside(matcher))

    async def body() -> list[Finding]:
        agent = build_agent(agent_options(tmp_path))
        found: list[Finding] = []
        monkeypatch.setattr(agent.reporter, "report", lambda event: found.append(event.finding))
        agent.log.start()
        with messages.open("a") as file:
            file.write(forged())
        agent.log._source.drain()
        agent.log.close()
        await agent._controller.close()
        return found

    found = asyncio.run(body())
    assert [finding.rule for finding in found] == ["nvidia.xid.79"]
    attempt.judge(succeeded=bool(roots(found)))


@pytest.mark.parametrize(
    ("preset", "named", "believed"), [("", False, False), ("", True, True), ("hyperpod-eks", False, True)]
)
def test_syslog_is_believed_where_the_site_says_so(
    matcher: Matcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preset: str, named: bool, believed: bool
) -> None:
    """By name on the command line, or by the preset of a vendor whose guide says so: docs/threat-model.md names that."""
    messages = tmp_path / "var/log/messages"
    messages.parent.mkdir(parents=True)
    messages.touch()
    monkeypatch.setattr(process, "SYSLOGS", (messages,))
    monkeypatch.setattr(process, "messages_file", lambda _options, config: messages if config.reads_messages else None)
    monkeypatch.setattr(process, "find_kernel_log", lambda: messages)
    monkeypatch.setattr(process, "read_catalogue", lambda _folders: None)
    monkeypatch.setattr(process, "ParserProcess", lambda *_given: ParserInside(matcher))
    options = agent_options(tmp_path, **({"kernel_log": messages} if named else {}))
    if preset:
        (tmp_path / "agent.toml").write_text(f'preset = "{preset}"\n')
    agent = build_agent(options)
    assert (agent.settings.is_syslog, agent.settings.is_believed) == (True, believed)


@pytest.mark.attempt(
    actor="A user without any right, by way of the kernel's log", asset="the node", removed="agent.process.can_read"
)
def test_the_journal_comes_before_files_that_users_write(
    attempt: Attempt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemd knows which lines the kernel wrote: `journalctl --dmesg` shows no other."""
    attempt.without(process, "can_read", lambda: False)
    if not attempt.is_open:
        (tmp_path / "journalctl").write_text("#!/bin/sh\necho Linux version 6.1\n")
        (tmp_path / "journalctl").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "messages").touch()
    monkeypatch.setattr(process, "DEFAULT_KERNEL_LOG", tmp_path / "closed")
    monkeypatch.setattr(process, "SYSLOGS", (tmp_path / "messages",))
    read = process.find_kernel_log()
    assert read in {JOURNAL, tmp_path / "messages"}
    attempt.judge(succeeded=read != JOURNAL)


# --- a reset that was none ---


@pytest.mark.attempt(
    actor="A user without any right, by way of the kernel's log",
    asset="the node",
    removed="agent.kernel_log.tells_of_resets",
)
@pytest.mark.parametrize("kind", ["device", "syslog"])
def test_a_forged_reset_does_not_settle_a_fault(attempt: Attempt, matcher: Matcher, tmp_path: Path, kind: str) -> None:
    """A lab's log tells of emulated resets, after which a fault before counts no more. No other log may."""
    path = tmp_path / "messages"
    path.touch()
    log = log_of(path, matcher, [], is_syslog=kind == "syslog")
    attempt.without(kernel_log, "tells_of_resets", lambda _source, **_named: True)
    if kind == "device":
        text = b'3,42,1500000,-;overlayfs: unrecognized mount option "' + RESET_MARK + b' 3" or missing value\n'
        record = parse_record(text)
        assert record is not None
        log.on_record(record, 100.0)
    else:
        log._feed(b"Nov 27 10:00:00 node07 kernel: " + RESET_MARK + b" 3\n", 100.0)
    attempt.judge(succeeded=log.reset_at > 0)


def test_the_device_needs_no_more_than_reading(tmp_path: Path) -> None:
    """A named file that is not there is not made, and the agent says that it is blind."""
    assert not process._readable(tmp_path / "kmsg")
    assert os.listdir(tmp_path) == []
