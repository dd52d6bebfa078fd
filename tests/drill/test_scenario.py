"""Scenarios: the shipped ones are right, and what is wrong is named with its line and the nearest right word."""

import pytest

from holdfast.drill.kinds import KINDS, Reach
from holdfast.drill.scenario import find, read_scenario, shipped
from holdfast.errors import ConfigError, NotFoundError
from holdfast.failpoint import command

ISSUE = {
    "good", "crash_segfault", "exception", "kill9", "sigstop", "gil_lock", "hang_allreduce", "hang_p2p", "hang_user_buffer",
    "straggler", "straggler_then_hang", "xid_74_replace", "xid_73_reboot", "node_loss", "network_cut", "disk_full",
    "corrupt_checkpoint", "nan_loss", "out_of_memory", "lookalike_lines",
    "slurmd_killed", "node_reboot", "slurmctld_restarted", "slurmdbd_away", "shared_full",
}  # fmt: skip


def test_every_kind_of_the_field_ships_as_a_scenario():
    """One scenario for each kind that people ask for; each is named like its file and says what it expects."""
    scenarios = shipped()
    assert set(scenarios) == ISSUE
    for name, scenario in scenarios.items():
        assert scenario.name == name
        assert scenario.title
        assert scenario.about
        assert scenario.expect.must_not_act or scenario.expect.causes


def test_every_kind_that_a_command_file_can_name_is_a_kind():
    """What ranks and launchers obey is what drills offer, with the same parameters."""
    inside = {name for name, kind in KINDS.items() if kind.reach is Reach.PROCESS}
    launcher = {name for name, kind in KINDS.items() if kind.reach is Reach.LAUNCHER}
    assert inside == set(command.KINDS)
    assert launcher == set(command.LAUNCHER_KINDS)
    assert all(kind.about and kind.how for kind in KINDS.values())


def test_a_scenario_reads_back_whole():
    """Every table, with defaults for what is not written."""
    scenario = read_scenario(
        'name = "x"\nkind = "straggler"\n[target]\nrank = 1\n[when]\nat_step = 7\n[params]\nextra_s = 2\n'
        '[expect]\ncauses = ["straggler.*"]\nremedies = ["notify"]\n[job]\nnodes = 3\n'
    )
    assert scenario.target.rank == 1
    assert scenario.when.at_step == 7
    assert scenario.job.nodes == 3
    assert scenario.settings == {"extra_s": 2, "busy": False, "steps": None}


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ('name = "x"\nkind = "kil9"\n', 2, ['no kind "kil9"', "kill9"]),
        ('name = "x"\nkind = "kill9"\n[expect]\ncauze = ["a"]\n', 4, ["cauze", "causes"]),
        ('name = "x"\nkind = "kill9"\n[expect]\ndetect_s_max = "soon"\n', 4, ["detect_s_max"]),
        ('name = "x"\nkind = "straggler"\n[params]\nextra = 1\n', 4, ['no parameter "extra"', "extra_s"]),
        ('name = "x"\nkind = "straggler"\n[params]\nextra_s = -1\n', 4, ["at least 0"]),
        ('name = "x"\nkind = "straggler"\n[params]\nsteps = true\n', 4, ["True", "int"]),
        ('name = "x"\nkind = "kill9"\n[params]\nhard = 1\n', 4, ["no parameter", "takes none"]),
        ('name = "x"\nkind = "xid"\n', 0, ["params.xid is missing"]),
        ('name = "x"\nkind = "xid"\n[target]\nrank = 1\n[params]\nxid = 74\n', 3, ["hits a node"]),
        ('name = "x"\nkind = "kill9"\n[target]\nnode = "n1"\n', 3, ["hits a rank"]),
        ('name = "x"\nkind = "kill9"\n[target]\nrank = 1\nrandom = "rank"\n', 3, ["not several"]),
        ('name = "x"\nkind = "kill9"\n[when]\nat_step = 1\nsteps_after = 2\n', 3, ["exclude each other"]),
        ('name = "x"\nkind = "kill9"\n[expect]\nremedies = ["reboott"]\n', 4, ["reboott", "reboot"]),
        ('name = "x"\nkind = "log_line"\n[params]\nline = "a"\nstream = "err"\n', 5, ["stdout, stderr"]),
        ('name = "x"\nkind = [\n', 3, ["TOML"]),
    ],
)  # fmt: skip
def test_wrong_keys_and_values_are_named(text, line, words):
    """The file, the line, the wrong word and the nearest right one."""
    with pytest.raises(ConfigError) as caught:
        read_scenario(text, "mine.toml")
    assert caught.value.file == "mine.toml"
    assert caught.value.line == line
    for word in words:
        assert word in str(caught.value)


def test_find_takes_names_and_files(tmp_path):
    """A shipped name, a file, and a clear word for what is neither."""
    assert find("kill9").kind == "kill9"
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\nkind = "good"\n')
    assert find(str(path)).name == "mine"
    with pytest.raises(NotFoundError, match="hang_allreduce"):
        find("hang_allreduc")
    with pytest.raises(NotFoundError, match="no such file"):
        find(str(tmp_path / "other.toml"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read"):
        find(str(tmp_path / "binary.toml"))
