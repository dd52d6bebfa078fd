"""`holdfast token ca`: an authority made once, certificates that clients and servers accept, keys for their owner alone."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.cli.main import app
from holdfast.errors import ConfigError, UsageError
from holdfast.os.tls import TlsFiles, checked


def call(*words: str) -> dict:
    result = CliRunner().invoke(app, ["token", "ca", *words, "--json"], catch_exceptions=False)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_server_and_an_agent_are_certified_by_one_authority(tmp_path: Path):
    """Names and this machine stand in the certificate; each is good for its purpose alone, for 825 days; keys are 0600."""
    made = call("c.example", "10.0.0.5", "--agent", "node07", "--out", str(tmp_path / "pki"))
    place = tmp_path / "pki"
    assert [Path(file).relative_to(place).as_posix() for file in made["files"]] == [
        "server.key", "server.crt", "agents/node07.pem"
    ]  # fmt: skip
    assert checked(TlsFiles(place / "server.crt", place / "server.key", place / "ca.pem"))
    modes = {path.name: oct(path.stat().st_mode)[-3:] for path in place.rglob("*") if path.is_file()}
    assert {name for name, mode in modes.items() if mode == "600"} == {"ca.key", "server.key", "node07.pem"}
    about = ssl._ssl._test_decode_cert(str(place / "server.crt"))
    named = {value.removesuffix(":0:0:0:0:0:0:1\n") for _, value in about["subjectAltName"]}
    assert named >= {"c.example", "10.0.0.5", "localhost", "127.0.0.1"}
    lived = ssl.cert_time_to_seconds(about["notAfter"]) - ssl.cert_time_to_seconds(about["notBefore"])
    assert lived == 825 * 86400
    agent = ssl._ssl._test_decode_cert(str(place / "agents" / "node07.pem"))
    assert agent["subject"] == ((("commonName", "agent:node07"),),)
    for purpose, file, good in (("sslserver", "server.crt", True), ("sslclient", "server.crt", False), ("sslclient", "agents/node07.pem", True), ("sslserver", "agents/node07.pem", False)):  # fmt: skip
        argv = ["openssl", "verify", "-x509_strict", "-CAfile", place / "ca.pem", "-purpose", purpose, place / file]
        assert (subprocess.run(argv, capture_output=True).returncode == 0) is good


def test_the_authority_is_made_once(tmp_path: Path):
    """Renewing keeps it, so that clients need nothing new; half of it alone is an error."""
    call("c.example", "--dir", str(tmp_path))
    place = tmp_path / "controller"
    before, server = (place / "ca.pem").read_bytes(), (place / "server.crt").read_bytes()
    call("c.example", "--dir", str(tmp_path), "--days", "1")
    assert (place / "ca.pem").read_bytes() == before
    assert (place / "server.crt").read_bytes() != server
    (place / "ca.key").unlink()
    with pytest.raises(ConfigError, match=r"ca\.pem: is there without ca\.key"):
        call("c.example", "--dir", str(tmp_path))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "for whom"),
        (["a b"], "neither a host name nor an address"),
        (["http://c"], "neither a host name nor an address"),
        (["--agent", "../n1"], "not a node's name"),
        (["--agent", ""], "not a node's name"),
    ],
)
def test_wrong_names_make_no_certificate(words: list[str], said: str, tmp_path: Path):
    """Each is one sentence, and no certificate is written."""
    with pytest.raises(UsageError, match=said):
        call(*words, "--out", str(tmp_path))
    assert not {path.name for path in tmp_path.rglob("*") if path.is_file()} - {"ca.pem", "ca.key"}


def test_a_missing_extra_names_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Without `cryptography` the sentence says what to install."""
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(UsageError, match=r"pip install 'holdfast\[tls\]'"):
        call("c.example", "--out", str(tmp_path))


@pytest.mark.parametrize("damage", ["cut", "foreign", "pipe", "pipe of the certificate"])
def test_a_damaged_authority_names_its_file(tmp_path: Path, damage: str) -> None:
    """A key that was cut off, one of another authority, a pipe: one sentence names the file, and nothing hangs."""
    pytest.importorskip("cryptography")
    call("controller.example", "--out", str(tmp_path))
    key, cert = tmp_path / "ca.key", tmp_path / "ca.pem"
    if damage == "cut":
        key.write_bytes(key.read_bytes()[:80])
    elif damage == "foreign":
        call("other.example", "--out", str(tmp_path / "other"))
        key.write_bytes((tmp_path / "other" / "ca.key").read_bytes())
    else:
        place = key if damage == "pipe" else cert
        place.unlink()
        os.mkfifo(place)
    with pytest.raises(ConfigError) as told:
        call("controller.example", "--out", str(tmp_path))
    assert str(cert if damage == "pipe of the certificate" else key) in str(told.value)
    assert "\n" not in str(told.value)
