"""`holdfast lab slurm build` and `up --prefix`: a Slurm of the user's own beside the distribution's."""

import tarfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.cli.main import app
from holdfast.lab import slurm_build

# What `configure` and the two Makefiles of a real tarball do, in little.
CONFIGURE = """#!/bin/sh
for word in "$@"; do case $word in --prefix=*) prefix=${word#--prefix=} ;; esac; done
printf 'install-pkgincludeHEADERS:\\n\\tmkdir -p %s/include/slurm\\n' "$prefix" >Makefile
printf 'all:\\ninstall-strip:\\n\\tmkdir -p %s/sbin; touch %s/sbin/slurmctld\\n' "$prefix" "$prefix" >src/Makefile
"""


@pytest.fixture
def tarball(tmp_path: Path, monkeypatch) -> Path:
    """The sources of a Slurm 24.11.5 in the working folder, under Debian's name; the cache is empty."""
    tree = tmp_path / "slurm-slurm-24-11-5-1"
    (tree / "src").mkdir(parents=True)
    (tree / "META").write_text("  Meta:\t\t1\n  Version:\t24.11.5\n")
    (tree / "configure").write_text(CONFIGURE)
    (tree / "configure").chmod(0o755)
    source = tmp_path / "slurm-wlm_24.11.5.orig.tar.gz"
    with tarfile.open(source, "w:gz") as tar:
        tar.add(tree, tree.name)
    headers = tmp_path / "include"
    for header in slurm_build.HEADERS:
        (headers / header).parent.mkdir(parents=True, exist_ok=True)
        (headers / header).touch()
    monkeypatch.setattr(slurm_build, "INCLUDE", headers)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return source


def holdfast(*words: str) -> tuple[int, str]:
    """The command's exit code, and all that it said on one line."""
    ended = CliRunner().invoke(app, ["lab", "slurm", *words])
    said = ended.output + (str(ended.exception) if ended.exception else "")
    return ended.exit_code, " ".join(said.split())


def test_a_tarball_is_built_once_for_each_version(tarball: Path, tmp_path: Path):
    """The second time the cache answers, and no tarball is needed."""
    prefix = tmp_path / "cache" / "holdfast" / "slurm" / "24.11.5"
    done = f"Slurm 24.11.5: {prefix} holdfast lab slurm up --prefix {prefix}"
    first = (
        f"building Slurm 24.11.5 from {tarball}: about five minutes of two cores, once; the log is {prefix}.log {done}"
    )
    assert holdfast("build", "24.11.5") == (0, first)
    assert (prefix / "sbin" / "slurmctld").exists()
    tarball.unlink()
    assert holdfast("build", "24.11.5") == (0, done)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["25.11.7"], "holds none of slurm-25.11.7.tar.bz2, slurm-25.11.7.tar.gz, slurm-wlm_25.11.7.orig.tar.gz"),
        (["25.11.7", "--source", "slurm-wlm_24.11.5.orig.tar.gz"], "is Slurm 24.11.5, not 25.11.7"),
        (["25.11"], "25.11: write the whole version, such as 24.11.5"),
    ],
)
def test_what_cannot_be_built_is_said_in_one_sentence(tarball: Path, words: list[str], said: str):
    """No tarball, one of another version, half a version."""
    code, output = holdfast("build", *words)
    assert (code != 0, said in output) == (True, True), output


def test_a_missing_header_is_named_with_its_package(tarball: Path, tmp_path: Path):
    """Slurm's configure only warns, and the lab would lack slurmrestd."""
    (tmp_path / "include" / "http_parser.h").unlink()
    code, output = holdfast("build", "24.11.5")
    assert code != 0
    assert "building Slurm needs http_parser.h; as root on Debian or Ubuntu:" in output
    assert output.endswith("libhttp-parser-dev")


def test_a_prefix_without_slurm_is_refused(tmp_path: Path):
    """Before anything is started."""
    code, output = holdfast("up", "--dir", str(tmp_path / "lab"), "--prefix", str(tmp_path))
    assert (code != 0, "there is no sbin/slurmctld below it" in output) == (True, True), output
