"""`holdfast doctor` checks what logins, notices and the parser of logs are named: it finds out before they are needed."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from holdfast.adapters.policy_files import packaged_presets, read_policy
from holdfast.api.auth import Role, book_line, new_token
from holdfast.cli.credentials import credentials
from holdfast.cli.machine import State
from holdfast.cli.main import app
from holdfast.os.unix_sockets import NAME, socket_address
from holdfast.wiring.controller import warn_of_people
from munge_fixture import munged


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty holdfast.toml and agent.toml."""
    (tmp_path / "holdfast.toml").write_text("")
    (tmp_path / "agent.toml").write_text("")
    monkeypatch.setenv("HOLDFAST_CONFIG", str(tmp_path / "holdfast.toml"))
    monkeypatch.setenv("HOLDFAST_AGENT_CONFIG", str(tmp_path / "agent.toml"))
    for name in ("HOLDFAST_CONTROLLER", "HOLDFAST_MUNGE", "HOLDFAST_CLUSTER", "SLURM_CLUSTER_NAME", "SLURM_CONF"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_nothing_is_said_of_what_is_not_named() -> None:
    """No munge, no destination, and nobody, who needs no entry."""
    assert credentials() == []


def test_a_local_socket_answers_is_missing_or_refused(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named by the environment or by holdfast.toml: who listens, that nobody does, and why it is refused."""
    path = site / NAME
    monkeypatch.setenv("HOLDFAST_CONTROLLER", f"unix:{path}")
    assert [(fact.name, fact.state) for fact in credentials()] == [("local socket", State.MISSING)]
    with socket.socket(socket.AF_UNIX) as server, socket_address(path) as address:
        server.bind(address)
        server.listen()
        assert [fact.found for fact in credentials()] == [f"{path}, of uid {os.geteuid()}"]
        monkeypatch.delenv("HOLDFAST_CONTROLLER")
        (site / "holdfast.toml").write_text(f'controller = "unix:{path}"\n')
        site.chmod(0o777)
        (found,) = credentials()
        assert (found.state, f"chmod go-w {site}" in found.found) == (State.BROKEN, True)


def test_a_munged_that_does_not_answer_is_broken(site: Path) -> None:
    """Asked for by holdfast.toml; the socket is not there."""
    (site / "holdfast.toml").write_text(f'[slurm]\nmunge = true\nmunge_socket = "{site}/none"\n')
    (found,) = credentials()
    assert (found.name, found.state) == ("munge login", State.BROKEN)
    assert f"{site}/none" in found.advice


def test_a_munged_that_signs_is_named_with_its_cluster(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for by the environment. Without a cluster's name no login is made."""
    monkeypatch.setenv("SLURM_CONF", str(site / "none.conf"))
    with munged(b"k" * 128) as one:
        monkeypatch.setenv("HOLDFAST_MUNGE", one.socket)
        assert [(fact.state, fact.advice) for fact in credentials()] == [(State.MISSING, "set HOLDFAST_CLUSTER")]
        monkeypatch.setenv("HOLDFAST_CLUSTER", "east")
        assert [(fact.state, fact.found) for fact in credentials()] == [
            (State.OK, f"{one.socket} signs, for cluster east")
        ]


@pytest.mark.parametrize(
    ("allow", "state"),
    [("", State.BROKEN), ('[notify]\nallow = ["10.0.0.0/8"]\n', State.OK)],
    ids=["refused", "allowed"],
)
def test_an_address_that_is_refused_is_broken(site: Path, allow: str, state: State) -> None:
    """A webhook inside the site needs `[notify] allow`."""
    (site / "holdfast.toml").write_text(f'{allow}[[notify.to]]\nname = "ops"\nurl = "json://10.0.0.7/hook"\n')
    (found,) = credentials()
    assert (found.name, found.state) == ("notices", state)
    assert "ops" in found.found


@pytest.mark.parametrize(
    ("user", "state"), [("bin", State.OK), ("4711", State.OK), ("no-such-user", State.BROKEN), ("root", State.BROKEN)]
)
def test_the_parsers_user_is_looked_up(site: Path, user: str, state: State) -> None:
    """A number needs no entry. Root has every right, which the parser must not have."""
    (site / "agent.toml").write_text(f'parser_user = "{user}"\n')
    (found,) = credentials()
    assert (found.name, found.state) == ("parser user", state)
    assert user in found.found


@pytest.mark.parametrize(
    ("people", "is_told"), [(("mei", "Mei"), True), (("mei", "root"), True), (("mei", "ken"), False)]
)
def test_a_policy_that_asks_for_more_people_than_may_approve_is_told(
    site: Path, people: tuple[str, ...], is_told: bool
) -> None:
    """`doctor` and `policy check` say that nothing can be approved. Root and the controller's user need no token."""
    (site / "controller").mkdir()
    book = site / "controller" / "tokens"
    book.write_text("".join(book_line(new_token(), Role.OPERATOR, one) for one in people))
    with book.open("a") as more:
        more.write(book_line(new_token(), Role.AGENT, "agents") + book_line(new_token(), Role.OWNER, "guest"))
        more.write(book_line(new_token(), Role.OPERATOR, "gone", until=1.0))
        more.write(book_line(new_token(), Role.OPERATOR, "lead", sees=("project:vision",)))
    book.chmod(0o600)
    approvals = 2 + len({0, os.geteuid()})
    (site / "policy.toml").write_text(f"[trust]\napprovals = {approvals}\n")
    (site / "holdfast.toml").write_text('dir = "."\npolicy = "policy.toml"\n')
    assert [(one.name, one.state) for one in credentials()] == [("approvals", State.BROKEN)] * is_told
    said = CliRunner().invoke(app, ["policy", "check", str(site / "policy.toml")])
    assert "is a good policy" in said.stdout
    assert (f"asks for {approvals} people, and" in said.stderr) is is_told
    with capture_logs() as logged:
        warn_of_people(read_policy(site / "policy.toml", packaged_presets())[0], book)
    assert len(logged) == is_told
