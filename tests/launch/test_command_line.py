"""The quick reading of `holdfast run`'s line: where it says anything, it says what the command-line library says."""

from __future__ import annotations

import inspect

import pytest
import typer

from holdfast.cli import run as command
from holdfast.launch.command_line import read_plain
from holdfast.launch.options import RunOptions, options

PLAIN = [
    ["train.py"],
    ["train.py", "--nnodes", "2", "--", "x"],
    ["-m", "pkg.train", "--steps", "3"],
    ["--module", "pkg.train"],
    ["--", "torchrun", "train.py", "--lease-s", "9"],
    ["--nnodes", "2", "--nproc-per-node", "gpu", "--", "bash", "-c", "true"],
    ["--nnodes=2", "--nproc-per-node=8", "--standbys=0", "--tee=0,3", "train.py"],
    ["--max-restarts", "0", "--policy", "site//p.toml", "--job-dir", "./job/", "train.py"],
    ["--preload", "torch, json,", "--log-rules", "rules.yaml", "--checkpoints", "/ckpt", "train.py"],
    ["--rules", "a/", "--rules", "b", "train.py"],
    ["--stop-grace-s", "2.5", "--lease-s", "4", "train.py"],
    ["--tee", "all", "--tee", "none", "train.py"],
    ["--preload", "", "train.py"],
]
LEFT = [
    [],
    ["--help"],
    ["-h", "train.py"],
    ["--nnodes", "two", "train.py"],
    ["--nnodes", "-1", "train.py"],
    ["--nnodes"],
    ["--lease-s", "0.1", "train.py"],
    ["--lease-s", "1e1", "train.py"],
    ["--policy", "", "train.py"],
    ["--nope", "train.py"],
    ["--nnode", "2", "train.py"],
    ["-x", "train.py"],
    ["--module=1", "train.py"],
]


def by_library(args: list[str], monkeypatch: pytest.MonkeyPatch) -> RunOptions:
    seen: list[RunOptions] = []
    monkeypatch.setattr(command, "begin", seen.append)
    typer.main.get_command(command.run).main(args=args, standalone_mode=False)
    return seen[0]


@pytest.mark.parametrize("args", PLAIN, ids=" ".join)
def test_it_reads_a_plain_line_as_the_library_does(args: list[str], monkeypatch: pytest.MonkeyPatch):
    """Same script or command, same options, same defaults."""
    assert by_library(args, monkeypatch) == read_plain(args)


@pytest.mark.parametrize("args", LEFT, ids=" ".join)
def test_it_leaves_what_is_not_plain(args: list[str]):
    """Help, mistakes and the unusual are the library's: it has the sentences for them."""
    assert read_plain(args) is None


def test_it_knows_every_option():
    """An option that is added to the command is added here, or every launcher that uses it starts slowly."""
    named = set(inspect.signature(command.run_command).parameters)
    assert named - {"ctx", "command", "module"} == set(options())
