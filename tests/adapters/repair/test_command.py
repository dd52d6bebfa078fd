"""The site's own programs as repairs: real programs, run once per order, also over a controller that was killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.adapters.repair.command import CommandRepair
from holdfast.adapters.repair.once import Once
from holdfast.adapters.repair.settings import CommandConfig
from holdfast.errors import PermanentOrderError, TemporaryOrderError
from holdfast.model.orders import AnyOrder, QuarantineNode, RebootNode, ReplaceNode, ResetGpu

REBOOT = RebootNode(id="o1", cause=1, node="node07", boot_id="b-1", instance_id="m-1", incident="i9", why="Xid 79\nGPU")


def program(folder: Path, text: str) -> str:
    path = folder / "repair.sh"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def repair(folder: Path, environ: dict[str, str] | None = None, **config: object) -> CommandRepair:
    return CommandRepair(CommandConfig(**config), Once(folder / "records", environ or dict(os.environ)))


def execute(doer: CommandRepair, order: AnyOrder = REBOOT) -> str:
    return asyncio.run(doer.execute(order))


def test_only_what_is_named_is_done() -> None:
    """A site that names a way to reboot leaves resets and replacements to others, and everything else always."""
    doer = CommandRepair(CommandConfig(reboot=("power-cycle",)), Once(Path("/nonexistent"), {}))
    orders = (REBOOT, ReplaceNode(id="o", cause=1, node="n"), ResetGpu(id="o", cause=1, node="n"))
    assert [doer.can(order) for order in orders] == [True, False, False]
    assert not doer.can(QuarantineNode(id="o", cause=1, node="n"))


def test_places_are_filled_in_word_by_word_and_facts_come_in_the_environment(tmp_path: Path) -> None:
    """Each value stays inside its word; the reason, which may hold anything, comes on one line of the environment."""
    path = program(
        tmp_path, f'printf "%s|" "$@" "$HOLDFAST_WHY" "$HOLDFAST_INSTANCE_ID" > {tmp_path}/seen; echo cycled'
    )
    doer = repair(tmp_path, reboot=(path, "-H", "{node}-bmc", "{boot_id} now", "{other}"))
    assert execute(doer) == "cycled"
    assert (tmp_path / "seen").read_text() == "-H|node07-bmc|b-1 now|{other}|Xid 79 GPU|m-1|"


def test_without_a_place_the_nodes_name_is_the_last_word(tmp_path: Path) -> None:
    """As [slurm] replace_program has it."""
    path = program(tmp_path, 'echo "got $*"')
    assert execute(repair(tmp_path, reboot=(path, "--hard"))) == "got --hard node07"


@pytest.mark.parametrize("name", ["-rf", "a b", "n;reboot", "", "../x", "n\n", "x" * 300])
def test_a_name_that_is_no_name_never_reaches_a_command(tmp_path: Path, name: str) -> None:
    """Names come from outside: what does not look like one is refused before anything runs."""
    path = program(tmp_path, f"touch {tmp_path}/ran")
    with pytest.raises(PermanentOrderError, match="no name of a node"):
        execute(repair(tmp_path, reboot=(path,)), RebootNode(id="o1", cause=1, node=name))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("code", "words"),
    [(69, "no capacity: .*spare"), (77, "permission denied: .*spare"), (1, "failed: .*no spare left"), (-9, "failed")],
)
def test_the_end_of_a_program_is_named(tmp_path: Path, code: int, words: str) -> None:
    """sysexits.h: what a person reads says of what kind the failure is, with the program's own last line."""
    last = "kill -9 $$" if code < 0 else f"exit {code}"
    path = program(tmp_path, f"echo looking; echo no spare left >&2; {last}")
    with pytest.raises(PermanentOrderError, match=words):
        execute(repair(tmp_path, reboot=(path,)))


def test_a_program_that_is_not_there_is_said(tmp_path: Path) -> None:
    """One sentence with its path."""
    with pytest.raises(PermanentOrderError, match="/no/such/tool cannot be run: No such file"):
        execute(repair(tmp_path, reboot=("/no/such/tool",)))


def test_a_program_over_its_limit_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    """Named as timed out; its children are gone, too."""
    path = program(tmp_path, f"sleep 300 & echo $! > {tmp_path}/child; wait")
    with pytest.raises(PermanentOrderError, match=r"timed out: .* did not end within 0\.5 s"):
        execute(repair(tmp_path, reboot=(path,), limit_s=0.5))
    child = int((tmp_path / "child").read_text())
    until(lambda: not Path(f"/proc/{child}/cmdline").exists() or not Path(f"/proc/{child}/cmdline").read_bytes())


def test_try_again_later_is_tried_so_often_and_then_named(tmp_path: Path) -> None:
    """Exit code 75 is temporary, with the site's pause; after `tries` runs it has failed, and says how often."""
    path = program(tmp_path, f"echo x >> {tmp_path}/runs; echo bmc is busy; exit 75")
    doer = repair(tmp_path, reboot=(path,), tries=3, pause_s=7.0)
    for run in (1, 2):
        with pytest.raises(TemporaryOrderError, match="bmc is busy") as caught:
            execute(doer)
        assert caught.value.retry_after_s == 7.0
        assert len((tmp_path / "runs").read_text().split()) == run
    with pytest.raises(PermanentOrderError, match=r"bmc is busy \(3 times\)"):
        execute(doer)
    assert len((tmp_path / "runs").read_text().split()) == 3


def test_the_same_order_again_has_no_second_effect(tmp_path: Path) -> None:
    """Also by another controller on the same folder; another order runs."""
    path = program(tmp_path, f"echo x >> {tmp_path}/runs; echo done $HOLDFAST_ORDER")
    assert execute(repair(tmp_path, reboot=(path,))) == "done o1"
    assert execute(repair(tmp_path, reboot=(path,))) == "done o1"
    assert (tmp_path / "runs").read_text() == "x\n"
    assert execute(repair(tmp_path, reboot=(path,)), RebootNode(id="o2", cause=1, node="n")) == "done o2"
    assert (tmp_path / "runs").read_text() == "x\nx\n"


def until(holds, limit_s: float = 30.0) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


CONTROLLER = """
import asyncio, os, sys
from pathlib import Path
from holdfast.adapters.repair.command import CommandRepair
from holdfast.adapters.repair.once import Once
from holdfast.adapters.repair.settings import CommandConfig
from holdfast.model.orders import RebootNode
doer = CommandRepair(CommandConfig(reboot=(sys.argv[2],)), Once(Path(sys.argv[1]), os.environ))
print(asyncio.run(doer.execute(RebootNode(id="o1", cause=1, node="node07"))), flush=True)
"""


def test_a_killed_controller_finds_its_repair_running_and_waits_for_it(tmp_path: Path) -> None:
    """kill -9 in the middle: the repair runs on, is not begun twice, and its outcome reaches the next controller."""
    go = tmp_path / "go"
    os.mkfifo(go)
    path = program(tmp_path, f"echo x >> {tmp_path}/runs; read word < {go}; echo rebooted by $word")
    argv = [sys.executable, "-c", CONTROLLER, str(tmp_path / "records"), path]
    first = subprocess.Popen(argv, stdout=subprocess.PIPE)
    until((tmp_path / "runs").exists)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    second = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    go.write_text("hand\n")  # opens once the repair reads: it lives
    assert second.communicate(timeout=60)[0] == "rebooted by hand\n"
    assert (tmp_path / "runs").read_text() == "x\n"


def test_a_repair_that_was_cut_short_with_its_runner_is_begun_anew(tmp_path: Path) -> None:
    """A claim whose runner is dead (this machine was rebooted) holds nobody up; its pid may be somebody else's now."""
    path = program(tmp_path, "echo done")
    records = tmp_path / "records"
    records.mkdir()
    (records / "o1.1.begun").write_text(f"{os.getpid()} 12345")
    assert execute(repair(tmp_path, reboot=(path,))) == "done"


def test_tokens_are_not_handed_to_site_programs(tmp_path: Path) -> None:
    """It acts for the site, not for the controller."""
    path = program(tmp_path, 'echo "[$HOLDFAST_TOKEN$HOLDFAST_TOKEN_FILE]$SITE"')
    environ = {"PATH": os.environ["PATH"], "HOLDFAST_TOKEN": "t", "HOLDFAST_TOKEN_FILE": "f", "SITE": "s"}
    assert execute(repair(tmp_path, environ, reboot=(path,))) == "[]s"


def test_records_of_last_week_are_removed(tmp_path: Path) -> None:
    """The folder does not grow for ever."""
    old = tmp_path / "records" / "o0.1.json"
    old.parent.mkdir()
    old.write_text("{}")
    os.utime(old, (1, 1))
    execute(repair(tmp_path, reboot=(program(tmp_path, "true"),)))
    assert not old.exists()
    assert (tmp_path / "records" / "o1.1.json").exists()


def test_a_folder_that_cannot_be_written_is_worth_another_try(tmp_path: Path) -> None:
    """A full or missing disk is told as such; nothing is run without a record."""
    (tmp_path / "records").write_text("a file where the folder should be")
    with pytest.raises(TemporaryOrderError, match="records"):
        execute(repair(tmp_path, reboot=(program(tmp_path, "true"),)))
