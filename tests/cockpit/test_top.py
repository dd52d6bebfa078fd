"""`holdfast top` against a real controller: one picture, its JSON form, and following in a real terminal."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import sys
from pathlib import Path

import pytest
from tests.cockpit.served import TOKENS, Served, run, served

from holdfast.api import Role

pytestmark = pytest.mark.timeout(600)


def command(house: Served, folder: Path, *options: str) -> tuple[list[str], dict[str, str]]:
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(TOKENS[Role.VIEWER])
    argv = [sys.executable, "-m", "holdfast", "top", "--url", house.url, *options]
    return argv, {**os.environ, "HOLDFAST_TOKEN_FILE": str(token), "COLUMNS": "110", "LINES": "50", "TERM": "xterm"}


async def said(house: Served, folder: Path, *options: str) -> str:
    argv, environ = command(house, folder, *options)
    process = await asyncio.create_subprocess_exec(
        *argv, env=environ, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


def test_one_picture_shows_what_is_wrong_and_what_waits(tmp_path: Path) -> None:
    """Open incident, proposed order, jobs and nodes by state; hostile text moves no cursor; the JSON form agrees."""

    async def work() -> None:
        async with served(tmp_path, policy='mode = "advise"\n') as house:
            await house.fault("n4", summary="Xid 74 \x1b[2J\x07 gone")
            text = await said(house, tmp_path, "--once")
            assert "Xid 74" in text
            assert "\x1b" not in text
            assert "Waiting for your word" in text
            form = json.loads(await said(house, tmp_path, "--json"))
            assert form["version"] == 1
            assert [one["nodes"] for one in form["open_incidents"]] == [["n4"]]
            assert form["nodes"]["suspect"] == 1
            assert len(form["proposed_orders"]) == 1
            assert form["health"]["ok"] is True

    run(work)


def test_it_follows_in_a_terminal_until_interrupted(tmp_path: Path) -> None:
    """A fault that comes while it runs appears; Ctrl-C ends it with its own exit code and the terminal as it was."""

    async def work() -> None:
        # In mode advise the incident stays open: in memory a whole recovery takes less than one picture.
        async with served(tmp_path, policy='mode = "advise"\n') as house:
            argv, environ = command(house, tmp_path)
            ours, theirs = pty.openpty()
            process = await asyncio.create_subprocess_exec(
                *argv, env=environ, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
            )
            os.close(theirs)
            seen = bytearray()
            asyncio.get_running_loop().add_reader(ours, lambda: _take(ours, seen))
            try:
                await _until(seen, b"No incident is open")
                await house.fault("n4")
                await _until(seen, b"Xid 74")
                process.send_signal(signal.SIGINT)
                await process.wait()
                assert process.returncode == 130
                await _until(seen, b"\x1b[?1049l")
            finally:
                asyncio.get_running_loop().remove_reader(ours)
                os.close(ours)
                if process.returncode is None:
                    process.kill()
                    await process.wait()

    run(work)


def _take(descriptor: int, seen: bytearray) -> None:
    try:
        seen += os.read(descriptor, 65536)
    except OSError:
        asyncio.get_running_loop().remove_reader(descriptor)


async def _until(seen: bytearray, text: bytes) -> None:
    async with asyncio.timeout(300):
        while text not in seen:
            await asyncio.sleep(0.05)
