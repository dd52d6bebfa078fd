"""`make audit`: advisories in the OSV format are matched by the schema's rules, and not having looked is a failure."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "audit" / "run.py"
COMPONENTS = [("Jinja2", "3.1.2"), ("httpx", "0.28.1"), ("odd_Name", "1.0")]


@pytest.fixture(scope="module")
def audit():
    spec = importlib.util.spec_from_file_location("audit_run", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def advisory(name, *events, versions=(), ecosystem="PyPI", **fields):
    span = {"type": "ECOSYSTEM", "events": [dict([event]) for event in events]}
    affected = {"package": {"ecosystem": ecosystem, "name": name}, "versions": list(versions), "ranges": [span]}
    return {"id": "X-1", "aliases": ["CVE-1"], "summary": "a\n  summary", "affected": [affected], **fields}


FROM_START = ("introduced", "0")
CASES = [
    (advisory("jinja2", FROM_START, ("fixed", "3.1.3")), True),
    (advisory("jinja2", FROM_START, ("fixed", "3.1.2")), False),
    (advisory("JINJA2", FROM_START, ("last_affected", "3.1.2")), True),
    (advisory("jinja2", FROM_START, ("last_affected", "3.1.1")), False),
    (advisory("jinja2", ("introduced", "3.1.2")), True),
    (advisory("jinja2", ("introduced", "3.1.3")), False),
    (advisory("jinja2", ("fixed", "3.0.1"), FROM_START, ("introduced", "3.1.0"), ("fixed", "3.1.10")), True),
    (advisory("jinja2", FROM_START, ("fixed", "3.0.1"), ("introduced", "3.1.10")), False),
    (advisory("jinja2", versions=["3.1.2"]), True),
    (advisory("jinja2", FROM_START, ecosystem="npm"), False),
    (advisory("jinja2", FROM_START, withdrawn="2026-01-01T00:00:00Z"), False),
    (advisory("jinja", FROM_START), False),
    (advisory("Odd.name", FROM_START), True),
]


@pytest.mark.parametrize(("one", "hits"), CASES)
def test_an_advisory_is_matched_by_the_rules_of_its_schema(audit, tmp_path, one, hits):
    (tmp_path / "X-1.json").write_text(json.dumps(one))
    found = audit.known_against(COMPONENTS, tmp_path)
    assert bool(found) == hits
    if hits:
        assert "X-1 (CVE-1) a summary" in found[0]


@pytest.fixture
def told(audit, monkeypatch):
    """The whole audit of a small bill."""
    monkeypatch.setattr(audit, "looked", lambda what, words: True)
    bill = [
        {"name": name, "version": version, "licenses": [{"license": {"id": "MIT"}}]} for name, version in COMPONENTS
    ]
    monkeypatch.setattr(audit, "bill", lambda python: bill)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["run.py", *map(str, words)])
        return audit.main()

    return run


def test_without_advisories_nobody_has_looked(told, capsys):
    assert told() == 2
    assert "none are given" in capsys.readouterr().out


def test_a_zip_of_advisories_is_read_and_what_it_knows_fails_the_audit(told, tmp_path, capsys):
    for name, event, code in (("all.zip", "3.1.3", 1), ("old.zip", "3.1.1", 0)):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("X-1.json", json.dumps(advisory("jinja2", FROM_START, ("fixed", event))))
        assert told("--advisories", tmp_path / name) == code
    assert "jinja2 3.1.2: X-1" in capsys.readouterr().out


@pytest.mark.parametrize("content", [None, "", "{", "{}"])
def test_what_holds_no_advisory_is_refused(told, tmp_path, capsys, content):
    folder = tmp_path / "advisories"
    if content is not None:
        folder.mkdir()
        (folder / "a.json").write_text(content)
    assert told("--advisories", folder) == 2
    assert str(folder) in capsys.readouterr().out


def test_every_extra_that_users_install_is_audited():
    """What `make audit` installs has all extras of pyproject.toml but the developers'."""
    makefile, project = (SCRIPT.parents[1] / name for name in ("Makefile", "pyproject.toml"))
    named = re.search(r"constraints\.txt '\.\[([\w,]+)\]'", makefile.read_text(encoding="utf-8"))
    extras = set(tomllib.loads(project.read_text(encoding="utf-8"))["project"]["optional-dependencies"])
    assert named is not None
    assert set(named[1].split(",")) == extras - {"dev"}
