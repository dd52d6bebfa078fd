"""The command line of srun, its own lines, and its file-name patterns."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from holdfast.adapters.slurm.steps import (
    _LONG,
    _LONG_WITH_VALUE,
    attempt_argv,
    exported_with_ours,
    output_glob,
    read_call,
    shape_of,
    take_own,
)
from holdfast.errors import UsageError
from slurm_fixture import need_slurm

VALUES = (["--tasks-per-node", "1"], ["--treewidth", "64"], ["--msg-timeout", "9"], ["--cluster", "a"], ["--stepmgr"])
NODES = ("node01", "node02", "node03", "node04")


def test_own_options_are_taken_from_among_sruns_and_not_from_the_programs() -> None:
    """HyperPod's users write `--auto-resume=1` anywhere before the program; after it everything is the program's."""
    taken = take_own(["-N2", "--auto-resume=1", "-n", "4", "--spares", "1", "./train", "--policy=x", "--spares", "9"])
    assert taken.own == ("--auto-resume=1", "--spares=1")
    assert taken.rest == ("-N2", "-n", "4", "./train", "--policy=x", "--spares", "9")


def test_an_options_value_is_not_taken_for_the_program() -> None:
    """`-o FILE`, `--output FILE`, `-lN 2` and abbreviations take their next word with them."""
    for words in (
        ["-o", "out"],
        ["--output", "out"],
        ["-lN", "2"],
        ["--ntasks-per-n", "2"],
        ["--job-name", "x"],
        *VALUES,
    ):
        taken = take_own([*words, "--auto-resume=1", "prog"])
        assert (taken.own, taken.rest) == (("--auto-resume=1",), (*words, "prog"))


def test_tasks_per_node_has_a_second_name() -> None:
    """Srun takes `--tasks-per-node` as well: then the step's number of tasks is not worked out from the job's."""
    call = read_call(["--tasks-per-node", "2", "-N2", "prog"])
    assert call.value("ntasks-per-node") == "2"
    assert shape_of(call, NODES, {"SLURM_NTASKS": "7"}, spares=None).tasks is None


@pytest.mark.soak
@pytest.mark.cluster
def test_the_installed_srun_takes_values_as_we_do(tmp_path: Path) -> None:
    """Of each option that it knows, the real srun says itself whether it needs another word."""
    need_slurm()
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=x\nSlurmctldHost=localhost\n")
    env = {**os.environ, "SLURM_CONF": str(conf), "LC_ALL": "C"}
    wrong = []
    for option in sorted(_LONG):
        argv = ["srun", f"--{option}"]
        said = subprocess.run(
            argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30
        ).stderr
        if "unrecognized option" not in said and ("requires an argument" in said) != (option in _LONG_WITH_VALUE):
            wrong.append(option)
    assert wrong == []


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("--auto_resume", "write --auto-resume=1"),
        ("--auto-resume=true", "write --auto-resume=1"),
        ("--auto-resume", "write --auto-resume=1"),
        ("--autoresume=1", "write --auto-resume=1"),
        ("--spare=1", "write --spares"),
        ("--max_restarts=1", "write --max-restarts"),
    ],
)
def test_a_near_miss_gets_one_sentence(word: str, said: str) -> None:
    """A misspelt option of ours must not reach srun, which would refuse it in the middle of the night."""
    with pytest.raises(UsageError, match=re.escape(said)):
        take_own([word, "./train"])


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["-N2"], "no program"),
        (["-r", "1", "prog"], "--relative"),
        (["-n1", "a", ":", "-n2", "b"], "several components"),
        (["--het-group=0", "prog"], "heterogeneous"),
        (["-m", "arbitrary", "prog"], "arbitrary"),
    ],
)
def test_what_cannot_be_run_again_elsewhere_is_refused(argv: list[str], said: str) -> None:
    """One clear sentence instead of a step that comes back wrong."""
    with pytest.raises(UsageError, match=said):
        read_call(argv)


def test_the_shape_of_a_step_counts_spares() -> None:
    """Without --nodes the step takes all but the spares; the batch job's number of tasks is brought down with it."""
    shape = shape_of(read_call(["prog"]), NODES, {"SLURM_NTASKS": "8"}, spares=1)
    assert (shape.nodes, shape.tasks, shape.candidates) == (3, 6, NODES)
    shape = shape_of(read_call(["-N", "2", "prog"]), NODES, {"SLURM_NTASKS_PER_NODE": "2"}, spares=None)
    assert (shape.nodes, shape.tasks) == (2, 4)
    shape = shape_of(read_call(["-N2-3", "-n5", "prog"]), NODES, {}, spares=None)
    assert (shape.nodes, shape.tasks) == (3, 5)
    assert shape_of(read_call(["prog"]), NODES, {"SLURM_NTASKS": "8"}, spares=None).tasks is None


def test_a_list_of_nodes_comes_first_and_excluded_ones_never() -> None:
    """--nodelist says where the first attempt runs; --exclude holds for spares too."""
    shape = shape_of(read_call(["-w", "node[03-04]", "-x", "node01", "prog"]), NODES, {}, spares=None)
    assert (shape.nodes, shape.candidates) == (2, ("node03", "node04", "node02"))


def test_a_step_that_does_not_fit_is_refused() -> None:
    """More nodes than there are, foreign nodes, and tasks that do not follow."""
    with pytest.raises(UsageError, match="need 5 nodes"):
        shape_of(read_call(["-N4", "prog"]), NODES, {}, spares=1)
    with pytest.raises(UsageError, match="node09 is not in this allocation"):
        shape_of(read_call(["-w", "node09", "prog"]), NODES, {}, spares=None)
    with pytest.raises(UsageError, match="give --ntasks"):
        shape_of(read_call(["prog"]), NODES, {"SLURM_NTASKS": "7"}, spares=1)


def test_an_attempts_command_line_keeps_everything_but_its_place() -> None:
    """Nodes are set anew, a failed task ends nothing by Slurm's hand, output is appended; all else stands in its order."""
    call = read_call(["-N3", "-l", "-w", "node[01-03]", "-o", "x_%j.log", "--mpi", "pmix", "prog", "-N9", "a b"])
    shape = shape_of(call, NODES, {}, spares=None)
    argv = attempt_argv(call, shape, ["node01", "node04", "node03"], overlap=True)
    assert argv == [
        "srun", "--nodes=3", "--nodelist=node01,node04,node03", "--kill-on-bad-exit=0", "--overlap",
        "--open-mode=append", "-l", "-o", "x_%j.log", "--mpi", "pmix", "prog", "-N9", "a b",
    ]  # fmt: skip


def test_the_users_word_on_bad_exits_and_open_mode_stands() -> None:
    """-K0 and --open-mode=truncate are kept; --exclusive gives way to --overlap only when that is needed."""
    call = read_call(["-K0", "--open-mode=truncate", "--exclusive", "prog"])
    shape = shape_of(call, NODES, {}, spares=None)
    argv = attempt_argv(call, shape, NODES, overlap=False)
    assert "--kill-on-bad-exit=0" in argv
    assert "--open-mode=append" not in argv
    assert "--exclusive" in argv
    assert "--exclusive" not in attempt_argv(call, shape, NODES, overlap=True)


@pytest.mark.parametrize(
    ("given", "ended_by", "expected"),
    [
        ([], "us", ["--kill-on-bad-exit=0"]),
        (["-K"], "us", ["--kill-on-bad-exit=0"]),
        ([], "srun", ["--kill-on-bad-exit=1"]),
        (["-K0"], "srun", ["--kill-on-bad-exit=0"]),
        (["-K"], "srun", ["--kill-on-bad-exit=1"]),
        ([], "user", []),
        (["--kill-on-bad-exit"], "user", ["--kill-on-bad-exit=1"]),
        (["-K0"], "user", ["--kill-on-bad-exit=0"]),
    ],
)
def test_who_ends_the_other_tasks_is_said_to_srun(given: list[str], ended_by: str, expected: list[str]) -> None:
    """Where we end them Slurm must not; where nothing is read it should; where we only watch, as the user has it."""
    call = read_call([*given, "prog"])
    argv = attempt_argv(call, shape_of(call, NODES, {}, spares=None), NODES, overlap=False, ended_by=ended_by)
    assert [word for word in argv if "kill-on-bad" in word or word.startswith("-K")] == expected


def test_the_variables_that_fence_an_attempt_are_always_exported() -> None:
    """--export=NONE and lists get Holdfast's variables added; ALL has them."""
    assert exported_with_ours("ALL,X=1") == "ALL,X=1"
    assert exported_with_ours("NONE").startswith("HOLDFAST_JOB_ID,")
    assert exported_with_ours("PATH,X=1").startswith("PATH,X=1,HOLDFAST_")


@pytest.mark.parametrize(
    ("given", "environ", "expected"),
    [
        ([], {}, []),
        ([], {"SLURM_EXPORT_ENV": "NONE"}, ["--export=HOLDFAST_JOB_ID"]),
        ([], {"SLURM_EXPORT_ENV": "PATH"}, ["--export=PATH,HOLDFAST_JOB_ID"]),
        (["--export=ALL"], {"SLURM_EXPORT_ENV": "NONE"}, ["--export=ALL"]),
    ],
)
def test_what_sbatch_was_told_to_export_holds_for_its_steps(
    given: list[str], environ: dict[str, str], expected: list[str]
) -> None:
    """`sbatch --export=NONE` reaches srun as a variable; the tasks are to be fenced there as well."""
    call = read_call([*given, "prog"])
    argv = attempt_argv(call, shape_of(call, NODES, environ, spares=None), NODES, overlap=False)
    found = [word for word in argv if word.startswith("--export")]
    assert [word.partition(",HOLDFAST_JOB_DIR")[0] for word in found] == expected


def test_file_name_patterns_become_globs() -> None:
    """What is known is put in, what only nodes know becomes a star, and glob's own signs stay literal."""
    names = {"job": "77", "array_job": "70", "array_task": "3", "user": "mei", "name": "a[b]"}
    assert output_glob("%x_%j_%t.log", **names) == "a[[]b]_77_*.log"
    assert output_glob("o_%A_%a_%4j.%%", **names) == "o_70_3_0077.%"
    assert output_glob("", **names) == ""
    assert output_glob("none", **names) == ""
