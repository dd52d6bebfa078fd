"""holdfast.telemetry: the public calls, each in a real process."""

import os
import signal
import struct
import subprocess
import sys
import zlib

import pytest

from holdfast.telemetry.slot import SlotError, read_slot, request_evacuate
from holdfast.telemetry.stacks import parse_faulthandler


def run(start, code, rank=0, rc=0, **environment):
    process = start(code, rank, **environment)
    out, err = process.communicate(timeout=90)
    assert process.returncode == rc, err
    return out, err


def test_a_run_of_steps_is_in_the_slot(start):
    """Steps, phase, totals, loss and checkpoints told by a script are what a reader finds after its end."""
    code = """
import holdfast.telemetry as telemetry
telemetry.set_phase("load")
for i in range(100, 200):
    telemetry.step_begin(i)
    telemetry.step_end(i, loss=i / 2, samples=8, tokens=1024)
telemetry.accuracy(0.75)
telemetry.checkpoint(150, durable=True)
telemetry.checkpoint(190, durable=False)
telemetry.step_begin(200)
"""
    run(start, code, 7, LOCAL_RANK="3", WORLD_SIZE="16", HOLDFAST_ATTEMPT="2", HOLDFAST_EPOCH="9")
    view = read_slot(start.folder / "rank-00007.slot")
    assert (view.rank, view.local_rank, view.world_size, view.attempt, view.epoch) == (7, 3, 16, 2, 9)
    assert (view.step_begun, view.step_ended, view.steps, view.phase) == (200, 199, 100, "train")
    assert (view.samples, view.tokens, view.loss, view.accuracy) == (800, 102400, 99.5, 0.75)
    assert (view.checkpoint_durable, view.checkpoint_staged) == (150, 190)
    assert len(view.step_s_recent) == 64
    assert view.step_s_recent[-1] == view.step_s_last > 0
    assert view.start_mono <= view.opened_mono <= view.phase_mono
    assert 0 <= view.opened_wall - view.start_wall < 30
    assert abs((view.opened_wall - view.start_wall) - (view.opened_mono - view.start_mono)) < 0.1


def page_of(version, words):
    """A slot as an earlier Holdfast wrote it; words: the step record without its check sum."""
    head = struct.pack("=8sII7q4d", b"HFSLOT\r\n", version, 4096, 4711, 5, 1, 8, 2, 3, 0, 50.0, 5.0, 51.0, 6.0)
    step = struct.pack("=2q2dq2dq3d3qd2qd", *words)
    checkpoint = struct.pack("=2q2dq2d", 1, 90, 95.0, 10.0, 80, 96.0, 11.0)
    page = bytearray(4096)
    for offset, record, form in ((0, head, "=I"), (512, step, "=q"), (896, checkpoint, "=q")):
        whole = record + struct.pack(form, zlib.crc32(record))
        page[offset : offset + len(whole)] = whole
    page[1024:1040] = struct.pack("=2d", 0.5, 0.25)
    return page


STEP_OF_2 = (7, 3, 52.0, 7.0, 101, 60.0, 15.0, 100, 59.0, 14.0, 0.25, 2, 64, 512, 1.5, 1, 4, 2.0)


def test_a_rank_of_an_earlier_holdfast_is_still_read(tmp_path):
    """A job that began under version 2 of the page is read in full, without accuracy, and can be asked to leave."""
    path = tmp_path / "rank-00005.slot"
    path.write_bytes(page_of(2, STEP_OF_2))
    view = read_slot(path)
    assert (view.pid, view.rank, view.local_rank, view.world_size, view.attempt, view.epoch) == (4711, 5, 1, 8, 2, 3)
    assert (view.phase, view.step_begun, view.step_ended, view.steps) == ("train", 101, 100, 2)
    assert (view.samples, view.tokens, view.loss, view.accuracy) == (64, 512, 1.5, None)
    assert (view.saves, view.saves_s, view.step_s_last, view.step_s_recent) == (4, 2.0, 0.25, (0.5, 0.25))
    assert (view.checkpoint_staged, view.checkpoint_durable, view.writes, view.evacuate) == (90, 80, 8, False)
    request_evacuate(tmp_path)
    assert read_slot(path).evacuate


def test_an_earlier_page_that_is_damaged_or_of_another_version_is_refused(tmp_path):
    """A torn record of version 2 gives no numbers; a page of version 1 or 4 is named as such."""
    path = tmp_path / "rank-00005.slot"
    torn = page_of(2, STEP_OF_2)
    torn[600] ^= 1
    path.write_bytes(torn)
    with pytest.raises(SlotError):
        read_slot(path)
    for version in (1, 4):
        path.write_bytes(page_of(version, STEP_OF_2))
        with pytest.raises(SlotError, match=f"version {version}, this Holdfast reads 2 and 3"):
            read_slot(path)


def test_what_saves_cost_the_training_is_added_up(start):
    """Two saves of at least 20 ms each, one of them left by the next step: two, and their seconds."""
    code = """
import time
import holdfast.telemetry as telemetry
telemetry.step_begin(1)
telemetry.step_end(1)
with telemetry.phase("checkpoint"):
    time.sleep(0.02)
telemetry.set_phase("checkpoint")
time.sleep(0.02)
telemetry.step_begin(2)
"""
    run(start, code, 0)
    view = read_slot(start.folder / "rank-00000.slot")
    assert view.saves == 2
    assert 0.04 <= view.saves_s < 5.0
    assert view.phase == "train"


def test_things_not_yet_told_are_none(start):
    """A rank that only opened its slot has a phase and nothing else; a NaN loss is told as NaN."""
    run(start, "from holdfast import telemetry; assert telemetry.enabled()")
    view = read_slot(start.folder / "rank-00000.slot")
    assert view.phase == "init"
    assert (view.step_begun, view.step_ended, view.loss, view.accuracy, view.checkpoint_durable, view.step_s_last) == (
        (None,) * 6
    )
    assert view.step_s_recent == ()
    run(start, "from holdfast import telemetry; telemetry.loss(float('nan'))")
    view = read_slot(start.folder / "rank-00000.slot")
    assert view.loss != view.loss


def test_first_step_is_its_own_phase(start, until):
    """The first step of a process is `first_step` while it runs, so that compilation gets its own limit."""
    process = start("""
import sys
from holdfast import telemetry
telemetry.step_begin(0); print("begun", flush=True); sys.stdin.readline()
telemetry.step_end(0); print("ended", flush=True); sys.stdin.readline()
""")
    path = start.folder / "rank-00000.slot"
    assert process.stdout.readline() == "begun\n"
    assert read_slot(path).phase == "first_step"
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "ended\n"
    assert read_slot(path).phase == "train"


def test_a_phase_is_left_also_on_error_and_never_dangles(start):
    """`with phase` returns to the phase before, nested and on errors; a hand-set phase ends when a step begins."""
    code = """
from holdfast import telemetry
from holdfast.telemetry.slot import read_slot
import os
path = os.environ["HOLDFAST_TELEMETRY_DIR"] + "/rank-00000.slot"
phase = lambda: read_slot(path).phase
telemetry.step_begin(0); telemetry.step_end(0)
seen = []
try:
    with telemetry.phase("eval"):
        seen.append(phase())
        with telemetry.step(1):
            seen.append(phase())
        with telemetry.phase("checkpoint"):
            seen.append(phase())
        seen.append(phase())
        raise KeyError
except KeyError:
    seen.append(phase())
telemetry.set_phase("checkpoint"); seen.append(phase())
telemetry.step_begin(2); seen.append(phase())
print(*seen)
"""
    out, _ = run(start, code)
    assert out.split() == ["eval", "eval", "checkpoint", "eval", "train", "checkpoint", "train"]


def test_a_step_that_raises_is_not_ended(start):
    """`with step(i)` passes the error on and leaves the step begun but not ended; values set on it are told."""
    code = """
from holdfast import telemetry
with telemetry.step(4) as s:
    s.loss, s.samples = 1.5, 2
try:
    with telemetry.step(5):
        raise ValueError
except ValueError:
    print("passed on")
"""
    out, _ = run(start, code)
    view = read_slot(start.folder / "rank-00000.slot")
    assert out == "passed on\n"
    assert (view.step_begun, view.step_ended, view.loss, view.samples) == (5, 4, 1.5, 2)


def test_wrong_values_never_raise(start):
    """Nonsense from the caller costs a line on stderr, bounded in number, and the step still counts."""
    code = """
from holdfast import telemetry
telemetry.set_phase("lunch")
with telemetry.phase(None): pass
telemetry.step_begin("three"); telemetry.step_end(None)
for i in range(100):
    telemetry.step_begin(i); telemetry.step_end(i, loss="much", samples=2)
telemetry.checkpoint("x", durable=True)
telemetry.loss([]); telemetry.accuracy("much")
print("done")
"""
    out, err = run(start, code)
    assert out == "done\n"
    assert len(err.splitlines()) == 5
    assert "'lunch' is not one of init, load" in err
    assert read_slot(start.folder / "rank-00000.slot").steps == 100


def test_without_a_launcher_nothing_happens(tmp_path):
    """Without the environment every call is a no-op, says nothing and writes nothing."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_") and k != "RANK"}
    code = """
from holdfast import telemetry
telemetry.set_phase("init")
with telemetry.step(1): pass
with telemetry.phase("eval"): telemetry.loss(1.0)
telemetry.checkpoint(1, durable=True)
print(telemetry.enabled(), telemetry.evacuate_requested())
"""
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, done.stderr, list(tmp_path.iterdir())) == ("False False\n", "", [])


@pytest.mark.parametrize("rank", ["0", "five"])
def test_an_unusable_folder_costs_one_line(start, tmp_path, rank):
    """A missing folder or a bad rank turns telemetry off with one line; training goes on."""
    missing = tmp_path / "none" if rank == "0" else start.folder
    code = "from holdfast import telemetry\nfor i in range(9): telemetry.step_begin(i)\nprint('on')"
    out, err = run(start, code, rank, folder=missing)
    assert out == "on\n"
    assert err.count("\n") == 1
    assert "training goes on" in err


def test_a_full_disk_costs_one_line(start):
    """When the slot's page cannot be allocated nothing is mapped: a store to it would kill the process."""
    code = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from holdfast import telemetry
telemetry.step_begin(1); print(telemetry.enabled())
"""
    out, err = run(start, code)
    assert out == "False\n"
    assert "training goes on" in err
    assert [p.name for p in start.folder.iterdir() if p.suffix != ".stacks"] == []


def test_a_removed_folder_does_not_disturb_a_running_rank(start):
    """The mapped page outlives its folder."""
    code = """
import os, shutil
from holdfast import telemetry
telemetry.step_begin(1)
shutil.rmtree(os.environ["HOLDFAST_TELEMETRY_DIR"])
telemetry.step_end(1); telemetry.checkpoint(1, durable=True); print(telemetry.enabled())
"""
    assert run(start, code) == ("True\n", "")


def test_a_forked_child_leaves_the_parents_slot_alone(start):
    """A forked worker's calls, also in a phase that the parent had entered, change nothing in the slot."""
    code = """
import os
from holdfast import telemetry
telemetry.step_begin(1)
held = telemetry.phase("eval"); held.__enter__()
if os.fork() == 0:
    telemetry.step_begin(99); telemetry.set_phase("shutdown"); held.__exit__(None, None, None)
    os._exit(telemetry.enabled())
print(os.wait()[1])
"""
    out, _ = run(start, code)
    view = read_slot(start.folder / "rank-00000.slot")
    assert (out, view.step_begun, view.phase) == ("0\n", 1, "eval")


def test_a_spawned_child_leaves_the_parents_slot_alone(start):
    """A process that a rank starts inherits RANK, but not the slot."""
    code = """
import subprocess, sys
from holdfast import telemetry
telemetry.step_begin(1)
subprocess.run([sys.executable, "-c", "from holdfast import telemetry; telemetry.step_begin(99)"], check=True)
"""
    run(start, code)
    assert read_slot(start.folder / "rank-00000.slot").step_begun == 1


def test_a_warm_standby_opens_its_slot_when_it_has_a_rank(start):
    """Calls before the rank is known do nothing; the first call after it opens the slot."""
    code = """
import os
folder = os.environ.pop("HOLDFAST_TELEMETRY_DIR"); del os.environ["RANK"]
from holdfast import telemetry
telemetry.set_phase("load"); telemetry.step_begin(0)
assert not telemetry.enabled()
os.environ.update(HOLDFAST_TELEMETRY_DIR=folder, RANK="12")
telemetry.step_begin(3)
"""
    run(start, code)
    assert read_slot(start.folder / "rank-00012.slot").step_begun == 3


def test_a_checkpoint_thread_may_speak(start):
    """A background saver's words and the training thread's do not spoil each other."""
    code = """
import threading
from holdfast import telemetry
telemetry.enabled()
def save():
    for i in range(5000): telemetry.checkpoint(i, durable=bool(i & 1))
saver = threading.Thread(target=save); saver.start()
for i in range(20000):
    telemetry.step_begin(i); telemetry.step_end(i)
saver.join()
"""
    run(start, code)
    view = read_slot(start.folder / "rank-00000.slot")
    assert (view.step_ended, view.checkpoint_staged, view.checkpoint_durable) == (19999, 4998, 4999)


@pytest.mark.parametrize("when", ["before", "after"])
def test_evacuation_reaches_ranks_that_are_there_and_ranks_that_come(start, when):
    """`request_evacuate(folder)` is seen by open slots at once and by later ones when they open."""
    if when == "before":
        request_evacuate(start.folder)
    process = start("""
import sys, time
from holdfast import telemetry
print(telemetry.evacuate_requested(), flush=True)
while not telemetry.evacuate_requested(): time.sleep(0.001)
print("save and stop", flush=True)
""")
    assert process.stdout.readline() == f"{when == 'before'}\n"
    if when == "after":
        request_evacuate(start.folder)
    assert process.stdout.readline() == "save and stop\n"
    assert read_slot(start.folder / "rank-00000.slot").evacuate


def test_stacks_are_dumped_on_the_signal_and_the_rank_lives_on(start, until):
    """The armed signal appends every thread's Python stack to the rank's file; the process carries on."""
    process = start("""
import sys, threading
from holdfast import telemetry
up = threading.Event()
def saver(): up.set(); threading.Event().wait()
def stuck_in_user_code(): print("ready", flush=True); sys.stdin.readline()
threading.Thread(target=saver, daemon=True).start()
up.wait()
telemetry.step_begin(1)
stuck_in_user_code()
print("alive")
""")
    assert process.stdout.readline() == "ready\n"
    view = read_slot(start.folder / "rank-00000.slot")
    assert view.stack_signal == signal.SIGRTMIN + 5
    assert view.pid == process.pid
    os.kill(view.pid, view.stack_signal)
    file = start.folder / "rank-00000.stacks"
    until(lambda: "stuck_in_user_code" in file.read_text(), what="the dump")
    until(lambda: len(parse_faulthandler(file.read_text())[-1].frames) == 2, what="the whole dump")
    stacks = parse_faulthandler(file.read_text())
    assert {"saver", "stuck_in_user_code"} <= {frame.function for stack in stacks for frame in stack.frames}
    assert process.communicate("\n", timeout=90)[0] == "alive\n"


def test_the_users_faulthandler_is_left_as_it_is(start):
    """Opening the slot neither enables nor disables the user's crash traces."""
    code = "import faulthandler; from holdfast import telemetry; a = faulthandler.is_enabled(); telemetry.enabled(); print(a, faulthandler.is_enabled())"
    assert run(start, code)[0] == "False False\n"
    assert run(start, "import faulthandler; faulthandler.enable()\n" + code)[0] == "True True\n"


def test_import_brings_in_nothing_heavy(start):
    """Importing telemetry loads neither torch nor msgspec nor the modules that make imports slow."""
    code = """
import sys
before = set(sys.modules)
import holdfast.telemetry
heavy = {"torch", "msgspec", "dataclasses", "typing", "pathlib", "re", "enum", "threading", "json", "inspect"}
print(sorted(heavy & (set(sys.modules) - before)), sorted(m for m in sys.modules if m.startswith("holdfast")))
"""
    out, _ = run(start, code)
    assert out == "[] ['holdfast', 'holdfast.telemetry', 'holdfast.telemetry.layout', 'holdfast.telemetry.writer']\n"


def test_the_stack_signal_does_not_end_a_process_whose_interpreter_ends(start):
    """faulthandler lets go of it before the process is gone: a rank that leaves must not look like one that was killed."""
    code = """
import faulthandler, os
from holdfast import telemetry
from holdfast.telemetry.signals import STACK_SIGNAL
telemetry.step_begin(1)
faulthandler.unregister(STACK_SIGNAL)
os.kill(os.getpid(), STACK_SIGNAL)
raise SystemExit(3)
"""
    run(start, code, rc=3)
