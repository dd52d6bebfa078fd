"""Each fault without torch, proven by its real effect on a real process.

A command for one exact step is there before the rank starts: a step that is waited for may be past by then.
"""

import signal
import time

import pytest


@pytest.mark.parametrize("at_step", [None, 30])
def test_crash_segfault_is_a_real_signal_11(job, steps, at_step):
    """The process dies of SIGSEGV, without a word, after the fired mark; at a step it dies in that step."""
    before = time.time()
    if at_step is not None:
        job.command("crash_segfault", at_step=at_step)
    process = job.start(steps)
    if at_step is None:
        job.reach(5)
        before = time.time()
        job.command("crash_segfault")
    out, err = process.communicate(timeout=90)
    assert (process.returncode, out, err) == (-signal.SIGSEGV, "", "")
    fired = job.fired()
    assert fired["pid"] == process.pid
    assert before <= fired["at"] <= time.time()
    if at_step is not None:
        assert fired["step"] == job.slot().step_begun == at_step
        assert job.slot().step_ended == at_step - 1


def test_exception_ends_the_script_with_its_traceback(job, steps):
    """RuntimeError with the given words comes out of the training step."""
    process = job.start(steps)
    job.command("exception", at_step=10, message="CUDA error: an illegal memory access")
    _, err = process.communicate(timeout=90)
    assert process.returncode == 1
    assert err.rstrip().endswith("RuntimeError: CUDA error: an illegal memory access")
    assert "telemetry.step(i)" in err


def test_exception_without_a_step_meets_the_main_thread(job, steps):
    """Without a step the signal handler raises it in the main thread, wherever that is."""
    process = job.start("import time\nprint('up', flush=True)\nwhile True: time.sleep(30)")
    assert process.stdout.readline() == "up\n"
    job.command("exception", message="now")
    _, err = process.communicate(timeout=90)
    assert (process.returncode, err.rstrip().splitlines()[-1]) == (1, "RuntimeError: now")
    assert job.fired()["thread"] == "main"


@pytest.mark.parametrize("kind", ["hang_allreduce", "hang_p2p", "hang_user_buffer"])
def test_a_hang_blocks_the_main_thread_until_the_abort(job, steps, kind):
    """The dump shows the main thread in the fault, the step stands still, and the abort lets training go on."""
    job.command(kind, at_step=20)
    job.start(steps)
    assert job.fired()["step"] == 20
    stack = job.main_stack()
    assert kind in stack
    assert stack.index(kind) < stack.index("step_begin")
    assert (job.slot().step_begun, job.slot().step_ended) == (20, 19)
    job.abort()
    job.reach(25)


def test_a_busy_hang_burns_its_core_until_the_abort(job, steps):
    """`busy` hangs without ever sleeping, and still ends at the abort."""
    job.start(steps)
    job.command("hang_user_buffer", at_step=3, busy=True)
    job.fired()
    assert "hang_user_buffer" in job.main_stack()
    job.abort()
    job.reach(10)


def test_straggler_lengthens_its_steps_and_ends(job, steps):
    """Exactly `steps` steps take at least `extra_s` longer; the ones before and after do not.

    A busy machine may stretch any step: one beside the slow ones counts as slow when it is so in both drills.
    """
    first = {"d1": 10, "d2": 20}
    for drill, step in first.items():
        job.command("straggler", drill, at_step=step, extra_s=0.1, steps=3)
    # It stops at 30: the slot keeps the last 64 steps only.
    job.start(steps.replace("while True", "while i < 30") + "time.sleep(1000)\n")
    job.reach(29)
    took = job.slot().step_s_recent
    assert len(took) == 30
    around = range(-2, 6)
    slow = [near for near in around if all(took[step + near] >= 0.1 for step in first.values())]
    assert slow == [0, 1, 2]
    assert {drill: job.fired(drill)["step"] for drill in first} == first


def test_straggler_without_end_is_ended_by_the_abort(job, steps, until):
    """An abort ends even the step that is being slowed."""
    job.start(steps)
    job.command("straggler", extra_s=60, busy=True)
    slow = job.fired()["step"]
    job.abort()
    job.reach(slow + 5)


def test_straggler_then_hang(job, steps):
    """After its slow steps the rank hangs; the abort frees it."""
    job.command("straggler_then_hang", at_step=5, extra_s=0.05, steps=4)
    job.start(steps)
    job.reach(7)
    job.fired()
    assert job.slot().step_s_last >= 0.05
    deadline = time.monotonic() + 20
    while job.slot().step_begun != 8 or "wait" not in job.main_stack():
        assert time.monotonic() < deadline
    assert "slow_one_step" in job.main_stack()
    time.sleep(0.3)  # six times what a slow step adds: this is no slow step any more
    assert (job.slot().step_begun, job.slot().step_ended) == (8, 7)
    job.abort()
    job.reach(12)


TICKS = """
import threading, time
from holdfast import telemetry
telemetry.step_begin(0); telemetry.step_end(0)
def other():
    n = 0
    while True:
        telemetry.checkpoint(n, durable=False); n += 1; time.sleep(0.001)
threading.Thread(target=other, daemon=True).start()
i = 1
while True:
    with telemetry.step(i): time.sleep(0.002)
    i += 1
"""


def still(job, seconds):
    """How many words the rank wrote within that time."""
    before = job.slot().writes
    time.sleep(seconds)
    return job.slot().writes - before


@pytest.mark.parametrize("at_step", [None, 20])
def test_gil_lock_stops_every_thread_and_the_abort_frees_them(job, at_step):
    """No thread of the process runs Python, another process's abort ends it at once, and training goes on."""
    job.start(TICKS)
    job.reach(5)
    job.command("gil_lock", at_step=at_step)
    job.fired()
    deadline = time.monotonic() + 20
    while still(job, 0.1) > 0:
        assert time.monotonic() < deadline
    assert still(job, 0.3) == 0
    assert "hold" in job.main_stack() or at_step is None
    step, aborted = job.slot().step_begun, time.monotonic()
    job.abort()
    job.reach(step + 5)
    assert time.monotonic() - aborted < 10


def test_gil_lock_ends_by_itself(job):
    """After `seconds` the lock is given back."""
    job.start(TICKS)
    job.reach(5)
    job.command("gil_lock", seconds=0.3)
    job.fired()
    job.reach(job.slot().step_begun + 50)


def test_out_of_memory_without_torch_is_memoryerror(job, steps):
    """A real allocation fails, and its error ends the script."""
    process = job.start(steps)
    job.command("out_of_memory", at_step=4)
    _, err = process.communicate(timeout=90)
    assert (process.returncode, err.rstrip().splitlines()[-1]) == (1, "MemoryError")


def resident_mib(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) // 1024 for line in status if line.startswith("VmRSS"))


def test_held_memory_is_real_and_freed_by_the_abort(job, steps, until):
    """`hold_mib` grows the resident set by that much, and the abort gives it back while training goes on."""
    process = job.start(steps)
    job.reach(3)
    before = resident_mib(process.pid)
    job.command("out_of_memory", hold_mib=64)
    until(lambda: resident_mib(process.pid) >= before + 60, what="the memory taken")
    job.abort()
    until(lambda: resident_mib(process.pid) < before + 20, what="the memory given back")
    job.reach(job.slot().step_begun + 5)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_log_line_says_its_line_and_changes_nothing(job, steps, stream):
    """The look-alike is printed as given; the steps go on."""
    process = job.start(steps)
    line = "NCCL WARN Timeout waiting for connection"
    job.command("log_line", at_step=5, line=line, stream=stream, count=2)
    pipe = getattr(process, stream)
    assert [pipe.readline(), pipe.readline()] == [line + "\n"] * 2
    job.reach(20)


def test_nan_loss_without_torch_says_that_it_cannot(job, steps):
    """A process without torch has no parameter to poison: `.failed` says so, and nothing has fired."""
    job.start("import sys\nsys.modules['torch'] = None\n" + steps)
    job.command("nan_loss", at_step=5)
    assert "torch" in job.failed()["error"]
    job.reach(15)
    assert not job.has_fired()
