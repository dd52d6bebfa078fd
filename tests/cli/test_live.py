"""The same commands against a real controller's API, with tokens: reading, commanding, being refused."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from live_controller import Live, live_controller

from conftest import Holdfast

COMMANDS = (
    "jobs", "job 1778", "nodes", "node show node04", "incidents", "incident i-1", "orders", "orders --all",
)  # fmt: skip


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live_controller(tmp_path_factory.mktemp("live") / "lab") as found:
        yield found


@pytest.fixture
def events(live: Live) -> object:
    """Operator's commands in the journal, newest last."""
    import asyncio

    from holdfast.adapters.journal import open_journal

    def read() -> list:
        async def work() -> list:
            journal = open_journal(f"sqlite:///{live.folder}/controller/journal.db")
            try:
                return await journal.events(kind="operator_command")
            finally:
                await journal.close()

        return asyncio.run(work())

    return read


@pytest.mark.parametrize("command", COMMANDS)
def test_a_controller_and_a_journal_say_the_same(command: str, holdfast: Holdfast, live: Live, journal: Path) -> None:
    """`--dir` of a live controller prints what `--journal` prints, as table and as JSON."""
    argv = command.split()
    for form in ([], ["--json"]):
        asked = holdfast(*argv, "--dir", live.folder, *form)
        assert (asked.code, asked.err) == (0, "")
        assert asked.out == holdfast(*argv, "--journal", journal, *form).out


def test_a_report_over_the_api(holdfast: Holdfast, live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--url` gives the figures of the journal; a viewer's token suffices."""
    monkeypatch.setenv("HOLDFAST_TOKEN_FILE", str(live.viewer_token))
    of_api = json.loads(holdfast("report", "--url", live.url, "--json").out)
    of_file = json.loads(holdfast("report", "--dir", live.folder, "--json").out)
    assert of_api == of_file
    assert len(of_api["incidents"]) == 2


def test_a_word_of_a_person_is_journalled(holdfast: Holdfast, live: Live, events) -> None:
    """Who, what, why and on which node; the answer names the event and where to look."""
    ran = holdfast("node", "drain", "node01", "--why", "fans are  loud\n", "--dir", live.folder)
    assert (ran.code, ran.err) == (0, "")
    said = events()[-1]
    assert (said.command, said.node, said.why) == ("drain", "node01", "fans are loud")
    assert said.who
    assert said.source == f"operator:{said.who}"
    assert ran.out == (
        f"node node01 will be drained (event {said.seq} of the journal); `holdfast node show node01` shows what follows.\n"
    )


@pytest.mark.parametrize("word", ["return", "reboot", "replace", "confirm-healthy"])
def test_every_word_about_a_node(word: str, holdfast: Holdfast, live: Live, events) -> None:
    """Each subcommand sends its own command; `--json` gives the event's number."""
    ran = holdfast("node", word, "node04", "--why", "test", "--dir", live.folder, "--json")
    said = events()[-1]
    assert said.command == word.replace("-", "_")
    assert json.loads(ran.out) == {"version": 1, "command": said.command, "seq": said.seq, "node": "node04"}


def test_orders_are_approved_and_rejected(holdfast: Holdfast, live: Live, events) -> None:
    """Only those that wait for a person; a reason is needed to reject."""
    assert holdfast("approve", "o-2", "--dir", live.folder).out.startswith("order o-2 is approved (event ")
    assert (events()[-1].command, events()[-1].order) == ("approve", "o-2")
    ran = holdfast("approve", "o-2", "--withdraw", "--dir", live.folder)
    assert ran.out.startswith("order o-2 is no longer approved by you (event ")
    assert events()[-1].command == "withdraw"
    assert holdfast("reject", "o-2", "--why", "not today", "--dir", live.folder).code == 0
    assert (events()[-1].command, events()[-1].why) == ("reject", "not today")
    before = len(events())
    ran = holdfast("approve", "o-1", "--dir", live.folder)
    assert (ran.code, ran.sentence) == (2, "order o-1 is done: only proposed orders wait for a person")
    ran = holdfast("approve", "o-9", "--dir", live.folder)
    assert (ran.code, ran.sentence) == (1, 'no order "o-9"; `holdfast orders` lists them')
    assert holdfast("reject", "o-2", "--dir", live.folder).code == 2
    assert holdfast("node", "drain", "node01", "--why", "  ", "--dir", live.folder).code == 2
    assert len(events()) == before


def test_what_the_engine_refuses_is_said(holdfast: Holdfast, live: Live) -> None:
    """A command that is journalled but refused is no success: exit code 77 and the engine's reason."""
    ran = holdfast("node", "reboot", "node02", "--why", "refuse me", "--dir", live.folder)
    assert (ran.code, ran.out, ran.sentence) == (77, "", "Refused: reboot node02: it is retired")


def test_a_wrong_name_changes_nothing(holdfast: Holdfast, live: Live, events) -> None:
    """The nearest node is named; no command reaches the journal."""
    before = len(events())
    ran = holdfast("node", "replace", "nod04", "--why", "test", "--dir", live.folder)
    assert (ran.code, ran.sentence) == (1, 'no node "nod04"; did you mean "node04"?')
    for name in ("../orders", "a/b", "%2e%2e", "x y", "#"):
        assert holdfast("node", "drain", name, "--why", "test", "--dir", live.folder).code == 1
    assert len(events()) == before


def test_tokens_decide(holdfast: Holdfast, live: Live, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, events) -> None:
    """None, a wrong one, and a viewer's where an operator's is needed: exit code 77 and why."""
    ran = holdfast("jobs", "--url", live.url)
    assert ran.code == 77
    assert "set HOLDFAST_TOKEN_FILE" in ran.sentence
    wrong = tmp_path / "wrong"
    wrong.write_text("hft_wrong\n")
    monkeypatch.setenv("HOLDFAST_TOKEN_FILE", str(wrong))
    ran = holdfast("jobs", "--url", live.url)
    assert (ran.code, ran.sentence) == (
        77, f"the controller at {live.url} (--url) refuses: this token is unknown here, has ended or was revoked",
    )  # fmt: skip
    monkeypatch.setenv("HOLDFAST_TOKEN_FILE", str(live.viewer_token))
    assert holdfast("jobs", "--url", live.url).code == 0
    before = len(events())
    ran = holdfast("node", "drain", "node01", "--why", "test", "--url", live.url)
    assert ran.code == 77
    assert "'ann' has a viewer's rights" in ran.sentence
    assert len(events()) == before


def test_the_environment_and_the_file_name_it_too(
    holdfast: Holdfast, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HOLDFAST_CONTROLLER with a token file; holdfast.toml in the working folder."""
    expected = holdfast("jobs", "--dir", live.folder).out
    Path("token").write_bytes(live.viewer_token.read_bytes())
    Path("holdfast.toml").write_text(f'controller = "{live.url}"\ntoken_file = "token"\n')
    assert holdfast("jobs").out == expected
    Path("holdfast.toml").write_text(f'dir = "{os.path.relpath(live.folder)}"\n')
    assert holdfast("jobs").out == expected
    Path("holdfast.toml").unlink()
    monkeypatch.setenv("HOLDFAST_CONTROLLER", live.url)
    monkeypatch.setenv("HOLDFAST_TOKEN_FILE", str(live.viewer_token))
    assert holdfast("jobs").out == expected


def test_something_else_on_the_port(holdfast: Holdfast) -> None:
    """A server that is no controller is named as such, with exit code 69."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        ran = holdfast("jobs", "--url", f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
    assert ran.code == 69
    assert "does not answer as a controller" in ran.sentence


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>hello</html>")

    def log_message(self, *_arguments: object) -> None:
        """Be silent."""
