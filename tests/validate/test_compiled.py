"""The `openmp` and `mpi` steps: how what the programs say is judged, and what to do about what no step has advice for.

The programs themselves are compiled and broken in tests/walks/test_validation.py.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.os.programs import Ran
from holdfast.validate import tool_runs
from holdfast.validate.compiled import SCHEDULER, SOURCES, judged_mpi, judged_openmp, mpi, openmp
from holdfast.validate.registry import STEPS, Options
from holdfast.validate.results import Item, Verdict
from holdfast.validate.troubleshooting import HUNG, TROUBLES, UNKNOWN, advice_for, advised

GOOD = "rank 1 of 2 wrong 0 library MPICH Version: 5.0.2\nrank 0 of 2 wrong 0 library MPICH Version: 5.0.2\n"


def test_without_the_tools_a_step_is_not_applicable(monkeypatch: pytest.MonkeyPatch) -> None:
    """No compiler, no mpicc: the item says what is missing."""
    monkeypatch.setattr(tool_runs, "where", lambda _name, _folder="": "")
    assert [(one.name, one.verdict, one.why) for one in (*openmp(Options()), *mpi(Options()))] == [
        ("openmp.run", Verdict.ABSENT, "there is no C compiler (CC, cc, gcc, clang)"),
        ("mpi.run", Verdict.ABSENT, "there is no mpicc and no mpiexec on the PATH"),
    ]


def test_where_temporary_files_may_not_be_run_the_node_is_not_to_blame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/tmp mounted noexec, as hardened nodes have it: not applicable, and the item says what to do."""
    monkeypatch.setattr(tool_runs, "where", lambda name, _folder="": name)
    monkeypatch.setattr(tool_runs, "run", lambda *_: pytest.fail("nothing is compiled"))
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_NOEXEC | os.ST_NOSUID))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (found,) = openmp(Options())
    assert (found.name, found.verdict) == ("openmp.run", Verdict.ABSENT)
    assert found.why == f"{tmp_path} is mounted noexec: set TMPDIR to another folder"


@pytest.mark.parametrize(
    ("done", "why"),
    [
        (Ran(code=0, stdout=GOOD.encode()), ""),
        (
            Ran(code=0, stdout=GOOD.splitlines()[0].encode()),
            "it ended with 0: rank 1 of 2 wrong 0 library MPICH Version: 5.0.2",
        ),
        (Ran(code=6, stdout=GOOD.encode(), stderr=b"Abort: internal error"), "it ended with 6: Abort: internal error"),
        (Ran(hung=True), "it did not end within 40 s and was killed"),
    ],
)
def test_ranks_must_all_speak_and_end_well(done: Ran, why: str) -> None:
    """A rank that says nothing, an end that is none: a failure by its first telling line."""
    assert judged_mpi(done)[0].why == why
    assert (judged_mpi(done)[0].verdict is Verdict.PASS) == (not why)


def test_openmp_words() -> None:
    """What is no result is a failure with the program's last words."""
    assert (
        judged_openmp(Ran(code=0, stdout=b"openmp 201511 threads 4 wanted 4 sum 9 known 9\n"))[0].verdict
        is Verdict.PASS
    )
    assert judged_openmp(Ran(code=139, stdout=b""))[0].why == "it ended with 139: it said nothing"


def test_every_failure_has_advice_and_an_items_own_comes_first() -> None:
    """The first row that fits counts; a step that hung and one that nobody knows have advice, too."""
    bad = Item(name="mpi.run", verdict=Verdict.FAIL, why="rank 1 has 7 wrong elements")
    assert "transport" in advised(bad).advice
    assert advised(Item(name="cpu.rate", verdict=Verdict.WARN, why="slow", advice="look")).advice == "look"
    assert advised(Item(name="cpu.rate", why="slow")).advice == ""
    assert (advice_for("storage", "what", hung=True), advice_for("storage", "what")) == (HUNG, UNKNOWN)
    assert advice_for("pytorch", "ModuleNotFoundError: No module named 'torch'").startswith("install PyTorch")
    assert all(one.advice for one in TROUBLES)


def test_a_job_step_does_not_start_another() -> None:
    """Variables of Slurm and of another MPI's launcher are taken away; others stay. The sources ship."""
    taken = [
        name for name in ("SLURM_JOB_ID", "PMI_RANK", "PMIX_RANK", "PMI2_X", "PATH", "MY_PMI") if SCHEDULER.match(name)
    ]
    assert taken == ["SLURM_JOB_ID", "PMI_RANK", "PMIX_RANK", "PMI2_X"]
    assert sorted(one.name for one in SOURCES.iterdir()) == ["mpi.c", "openmp.c"]
    assert {STEPS["openmp"].call, STEPS["mpi"].call} == {"compiled:openmp", "compiled:mpi"}
