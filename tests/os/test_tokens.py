"""Files that clients read their token, address and certificates from: no secret is repeated, and no pipe is waited for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.adapters.journal_cases import run

from holdfast.agent.controller_link import ControllerLink
from holdfast.client import AsyncClient, Trust
from holdfast.errors import ConfigError, HoldfastError, LinkError, RefusedError
from holdfast.launch.uplink import ControllerLine
from holdfast.os.tls import MUNGE, PLAIN_HTTP, TlsFiles, server_context, trust_of
from holdfast.os.tokens import token_in
from holdfast.wiring.settings import find_controller, read_token

URL = "http://127.0.0.1:1"
SECRETS = [
    "hft_secret\nhft_secret2\n",
    "root:secret:0:0: a user\n",
    "hft_secret\x00",
    "hft_secret\x1b[0m",
    "secr\u00e9t",
]


@pytest.mark.parametrize("text", SECRETS)
def test_what_is_no_token_is_named_and_not_repeated(text: str, tmp_path: Path):
    """The command line, the agent and the client refuse it by a sentence; the launcher goes without."""
    file = tmp_path / "token"
    file.write_text(text)

    async def launcher() -> str:
        line = ControllerLine(url=URL, token_file=file)
        await line.client()
        await line.close()
        return line.no_token

    async def agent() -> None:
        await ControllerLink(URL, token_file=file)()

    said = [run(launcher)]
    for use in (lambda: read_token(file), lambda: run(agent), lambda: AsyncClient(URL, text)):
        with pytest.raises((ConfigError, LinkError)) as caught:
            use()
        said.append(str(caught.value))
    assert all(str(file) in one for one in said[:3])
    assert all("one line of ASCII" in one and "secr" not in one.replace(str(file), "") for one in said)


def test_a_token_is_read_without_its_lines_end(tmp_path: Path):
    """Empty files give an empty token."""
    file = tmp_path / "token"
    for text, token in (("hft_x\n", "hft_x"), (" hft_x\r\n", "hft_x"), ("\n", "")):
        file.write_text(text)
        assert token_in(file) == token


def test_no_pipe_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A pipe as token, address, authority, certificate or key is an error at once."""
    place = tmp_path / "controller"
    place.mkdir()
    pipe = place / "controller.json"
    os.mkfifo(pipe)
    (tmp_path / "cert.pem").write_text("-----BEGIN CERTIFICATE-----")

    async def launcher() -> None:
        await ControllerLine(file=pipe).client()

    for use in (
        lambda: find_controller(cluster_dir=tmp_path),
        lambda: read_token(pipe),
        lambda: run(launcher),
        lambda: Trust(ca_file=pipe).context(),
        lambda: Trust(cert_file=pipe).context(),
        lambda: server_context(TlsFiles(pipe, pipe)),
        lambda: server_context(TlsFiles(tmp_path / "cert.pem", pipe)),
    ):
        with pytest.raises(HoldfastError, match="no ordinary file"):
            use()
    ControllerLink(file=pipe)._look()


@pytest.mark.parametrize("yes", ["1", "true", "True", "yes", "on"])
def test_yes_is_yes_for_every_command(yes: str):
    """As `holdfast agent` reads the variable."""
    assert trust_of({PLAIN_HTTP: yes}).plain_http
    assert not trust_of({PLAIN_HTTP: "0"}).plain_http
    assert trust_of({MUNGE: yes}).munge == ""


def test_munge_is_a_word_or_a_socket():
    """A path is munged's socket; the environment wins over the file, also where it says no; a typo is told."""
    on = Trust(munge="")
    assert trust_of({MUNGE: "/run/m"}, on).munge == "/run/m"
    assert trust_of({MUNGE: "0"}, on).munge is None
    assert trust_of({}, on).munge == ""
    with pytest.raises(ConfigError, match="HOLDFAST_MUNGE=ja"):
        trust_of({MUNGE: "ja"})


def test_a_munge_credential_goes_where_a_token_would():
    """Over plain HTTP to another machine neither does."""
    with pytest.raises(RefusedError, match="over plain HTTP"):
        Trust(munge="").check("http://10.0.0.5:8470", "")
    Trust(munge="", plain_http=True).check("http://10.0.0.5:8470", "")
    Trust(munge="").check("https://10.0.0.5:8470", "")
