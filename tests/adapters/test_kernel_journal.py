"""The journal through a stand-in for journalctl (this machine has no systemd): lines arrive, the tool is started again."""

import asyncio

import pytest

from holdfast.adapters import kernel_journal
from holdfast.adapters.kernel_journal import KernelJournal, can_read
from holdfast.errors import LinkError


def stand_in(tmp_path, monkeypatch, script):
    path = tmp_path / "journalctl"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def test_lines_arrive_and_the_tool_is_started_again(tmp_path, monkeypatch):
    """It ends after a line: another one is started, and follows from there."""
    stand_in(tmp_path, monkeypatch, 'echo "NVRM: Xid (PCI:0000:53:00): 79, $*"')
    monkeypatch.setattr(kernel_journal, "AGAIN_S", 0.05)
    got = []

    async def body():
        journal = KernelJournal(lambda name, data: got.append((name, data)))
        journal.start()
        deadline = asyncio.get_running_loop().time() + 10
        while len(got) < 2:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.01)
        journal.close()
        journal.close()

    asyncio.run(body())
    assert got[0][0] == "journald"
    assert got[0][1].startswith(b"NVRM: Xid (PCI:0000:53:00): 79, --dmesg --follow --lines=0")


def test_no_journal_is_said(tmp_path, monkeypatch):
    """Without journalctl, and with one that may read nothing."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not can_read()
    with pytest.raises(LinkError, match="no journalctl"):
        KernelJournal(lambda name, data: None).start()
    stand_in(tmp_path, monkeypatch, "exit 1")
    assert not can_read()
    stand_in(tmp_path, monkeypatch, "echo Linux version 6.1")
    assert can_read()
