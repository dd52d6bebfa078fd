"""holdfast.failpoint.hook and its sitecustomize: who obeys, when, and how often."""

import json
import os
import subprocess
import sys
import time

from holdfast.failpoint import site_path


def test_only_the_named_ranks_obey(job, steps):
    """Rank 1 prints, rank 0 does not; both go on."""
    zero, one = job.start(steps, 0), job.start(steps, 1)
    job.command("log_line", ranks=(1,), at_step=5, line="me")
    assert one.stdout.readline() == "me\n"
    job.reach(20, 0)
    zero.terminate()
    assert zero.communicate(timeout=90)[0] == ""
    assert job.fired(rank=1)["pid"] == one.pid
    assert not job.has_fired(rank=0)


def test_a_drill_fires_once_for_ever(job, steps):
    """The restarted rank finds the mark and does not crash again."""
    job.command("crash_segfault", at_step=5)
    first = job.start(steps)
    assert first.wait(timeout=90) == -11
    mark = job.fired()
    job.start(steps)
    job.reach(0)
    job.command("log_line", "d2", at_step=30, line="later")
    job.fired("d2")
    assert job.fired() == mark


def test_a_restart_past_the_step_fires_at_the_next_one(job, steps):
    """A rank that resumes behind `at_step` fires at its first step, not never."""
    job.command("log_line", at_step=5, line="due")
    job.start(steps.replace("i = 0", "i = 100"))
    assert job.fired()["step"] == 100


def test_an_aborted_command_never_fires(job, steps, until):
    """An abort that is there before the step is reached disarms it, also for processes that come later."""
    gate = "    if i == 10: sys.stdin.readline()\n"
    process = job.start(steps.replace("    with", gate + "    with"))
    job.reach(9)
    job.command("crash_segfault", at_step=10)
    job.command("log_line", "d2", line="read")
    job.fired("d2")  # commands are read in the order of their names
    job.abort()
    process.stdin.write("\n")
    process.stdin.flush()
    job.reach(30)
    other = job.start(steps, 0)
    until(lambda: job.slot().pid == other.pid, what="the process that comes later")
    job.reach(30)
    assert (process.poll(), other.poll()) == (None, None)
    assert not job.has_fired()


def test_a_command_may_be_meant_for_one_attempt(job, steps):
    """A command for attempt 1 leaves attempt 0 alone."""
    job.command("log_line", attempt=1, at_step=3, line="one")
    job.start(steps, HOLDFAST_ATTEMPT="0")
    job.reach(20)
    assert not job.has_fired()
    assert job.start(steps, HOLDFAST_ATTEMPT="1").stdout.readline() == "one\n"


def test_a_warm_standby_obeys_once_it_has_a_rank(job, steps):
    """A process without RANK does nothing; after it gets one, the command waits for it."""
    process = job.start(
        "import os, sys\nprint('warm', flush=True); os.environ['RANK'] = sys.stdin.readline().strip()\n" + steps, None
    )
    assert process.stdout.readline() == "warm\n"
    job.command("log_line", ranks=(3,), at_step=2, line="rank 3")
    time.sleep(0.1)
    assert not job.has_fired(rank=3)
    process.stdin.write("3\n")
    process.stdin.flush()
    assert process.stdout.readline() == "rank 3\n"


def test_a_command_that_is_there_first_meets_the_script_and_not_the_interpreters_start(job):
    """An immediate exception comes out of the script even if the command is older than the process."""
    for n in range(5):
        job.command("exception", f"d{n}", message=f"number {n}")
        process = job.start("import time\ntime.sleep(30)")
        _, err = process.communicate(timeout=90)
        assert (process.returncode, err.rstrip().splitlines()[-1]) == (1, f"RuntimeError: number {n}")


def test_a_signal_that_the_main_thread_missed_is_sent_again(job):
    """The first one is lost, as it is when it comes just before a long call; the fault still comes at once."""
    code = """
import signal, time
from holdfast.telemetry.signals import DRILL_SIGNAL
own = signal.getsignal(DRILL_SIGNAL)
signal.signal(DRILL_SIGNAL, lambda *_: signal.signal(DRILL_SIGNAL, own))
print("ready", flush=True)
time.sleep(300)
"""
    process = job.start(code)
    assert process.stdout.readline() == "ready\n"
    job.command("exception", message="heard the second time")
    assert "heard the second time" in process.communicate(timeout=90)[1]


def test_a_command_that_is_there_first_is_exact_to_the_step(job):
    """A script that steps at once, without a pause, still meets the fault in its very first step."""
    job.command("exception", at_step=0, message="first")
    process = job.start("from holdfast import telemetry\nfor i in range(3): telemetry.step_begin(i)")
    assert "first" in process.communicate(timeout=90)[1]
    assert job.fired()["step"] == 0


def test_processes_started_by_the_rank_stay_out(job):
    """A forked worker and a program that the rank runs do not obey in its place."""
    code = """
import os, subprocess, sys, time
child = "import os, time, threading; time.sleep(1.5); print(sum(t.name == 'holdfast-drill' for t in threading.enumerate()))"
if os.fork() == 0:
    from holdfast import telemetry
    end = time.time() + 1.5
    while time.time() < end: telemetry.step_begin(9)
    os._exit(0)
program = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE, text=True)
print(program.communicate()[0].strip(), os.wait()[1], flush=True)
from holdfast import telemetry
while True: telemetry.step_begin(10); time.sleep(0.01)
"""
    process = job.start(code)
    job.command("log_line", at_step=5, line="parent only")
    assert process.stdout.readline() == "0 0\n"
    assert process.stdout.readline() == "parent only\n"
    assert job.fired()["pid"] == process.pid


def test_a_standby_forked_from_a_template_obeys(job, steps):
    """A process forked before there was a rank watches for itself."""
    code = "import os, time\nif os.fork(): os.wait(); os._exit(0)\ntime.sleep(0.1); os.environ['RANK'] = '4'\n"
    process = job.start(code + steps.replace("i = 0", "i = 0; print(__import__('os').getpid(), flush=True)"), None)
    child = int(process.stdout.readline())
    try:
        job.command("exception", ranks=(4,), at_step=5, message="stop")
        assert job.fired(rank=4)["pid"] == child
        assert process.wait(timeout=90) == 0
    finally:
        if process.poll() is None:
            os.kill(child, 9)


def test_a_main_thread_inside_c_code_does_not_stop_a_crash(job):
    """When the main thread does not come back to Python, the watching thread injects what any thread can."""
    code = "import ctypes\nprint('in C', flush=True)\nctypes.CDLL(None).pause.restype\nl = ctypes.CDLL(None)\nwhile True: l.pause() if False else l.read(0, ctypes.create_string_buffer(1), 1)"
    process = job.start(code)
    assert process.stdout.readline() == "in C\n"
    job.command("crash_segfault")
    assert process.wait(timeout=90) == -11
    assert job.fired()["thread"] == "holdfast-drill"


def test_a_script_without_telemetry_is_not_waited_for(job):
    """`at_step` in a script that never calls telemetry happens after a while instead of never."""
    process = job.start("import time\nwhile True: time.sleep(0.01)")
    job.command("exception", at_step=1000, message="no steps here", telemetry_wait_s=0.2)
    assert "no steps here" in process.communicate(timeout=90)[1]


def test_a_straggler_without_steps_to_slow_says_so(job):
    """Neither telemetry nor an optimizer: `.failed` instead of a drill that never ends."""
    job.start("import time\nwhile True: time.sleep(0.01)")
    job.command("straggler", telemetry_wait_s=0.1)
    assert "neither calls holdfast.telemetry" in job.failed()["error"]


def test_a_wrong_command_is_named_and_harms_nothing(job, steps):
    """Each wrong file costs one line on stderr; the next good command works."""
    process = job.start(steps)
    job.write("bad.json", json.dumps({"version": 1, "id": "bad", "kind": "explode", "ranks": [0]}))
    job.write("torn.json", '{"version"')
    job.write("other.txt", "hello")
    job.command("exception", at_step=20, message="end")
    err = process.communicate(timeout=90)[1]
    assert err.count("kind: 'explode'") == 1
    assert err.count("not JSON") == 1


def test_a_missing_folder_is_waited_for(job, steps):
    """The drill folder may come after the rank."""
    job.drills.rmdir()
    process = job.start(steps)
    job.reach(3)
    job.drills.mkdir()
    job.command("log_line", line="here")
    assert process.stdout.readline() == "here\n"


def python(code, **environment):
    env = {k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_") and k != "RANK"}
    return subprocess.run([sys.executable, "-c", code], env={**env, **environment}, capture_output=True, text=True)


def test_without_the_drill_folder_nothing_is_loaded():
    """With only the path set, no module, thread or signal handler of Holdfast is there."""
    code = "import sys, signal; print([m for m in sys.modules if 'holdfast' in m and not m.startswith('__editable')], 'threading' in sys.modules, signal.getsignal(signal.SIGRTMIN + 6))"
    done = python(code, PYTHONPATH=site_path(), RANK="0")
    assert (done.stdout, done.stderr) == ("[] False 0\n", "")


def test_the_sites_own_sitecustomize_still_runs(tmp_path):
    """The one that would have been loaded is loaded, under its own name, with its own errors."""
    (tmp_path / "sitecustomize.py").write_text("here = 'the site'\n")
    path = f"{site_path()}:{tmp_path}"
    code = "import sitecustomize, threading; print(sitecustomize.here, 'holdfast-drill' in [t.name for t in threading.enumerate()])"
    assert python(code, PYTHONPATH=path).stdout == "the site False\n"
    assert python(code, PYTHONPATH=path, HOLDFAST_DRILL_DIR=str(tmp_path), RANK="0").stdout == "the site True\n"
    (tmp_path / "sitecustomize.py").write_text("1 / 0\n")
    done = python("print('ran')", PYTHONPATH=path, HOLDFAST_DRILL_DIR=str(tmp_path), RANK="0")
    assert done.stdout == "ran\n"
    assert "ZeroDivisionError" in done.stderr


def test_a_python_without_holdfast_can_be_drilled(tmp_path):
    """In an interpreter that has only the standard library, the hook finds its own package and nothing else."""
    code = "import threading, sys; print('holdfast-drill' in [t.name for t in threading.enumerate()], 'torch' in sys.modules); import holdfast.telemetry\ntry: import msgspec\nexcept ImportError: print('no msgspec')"
    env = {"PYTHONPATH": site_path(), "HOLDFAST_DRILL_DIR": str(tmp_path), "RANK": "0", "PATH": os.environ["PATH"]}
    bare = [os.path.realpath(sys.executable), "-c", code]
    done = subprocess.run(bare, env=env, capture_output=True, text=True, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("True False\nno msgspec\n", "")
