"""The faults that need torch, on real models and a real process group."""

import socket
import time

import pytest

pytest.importorskip("torch")

TRAIN = """
import math, torch
from holdfast import telemetry
torch.manual_seed(0); torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
small = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.ones(2, 4)
i = 0
while True:
    with telemetry.step(i) as s:
        loss = model(x).square().mean(); optimizer.zero_grad(); loss.backward(); optimizer.step()
        s.loss = loss.item()
    if math.isnan(s.loss):
        print("nan in step", i, [n for n, p in model.named_parameters() if p.isnan().any()][:1], small.weight.isnan().any().item()); break
    i += 1
"""


@pytest.mark.timeout(120)
def test_nan_loss_comes_from_the_largest_model(job):
    """A parameter of the trained model is NaN from the given step on, and the loss is NaN by itself."""
    job.command("nan_loss", at_step=7)
    process = job.start(TRAIN)
    out, err = process.communicate(timeout=90)
    assert out == "nan in step 7 ['0.weight'] False\n", err
    assert job.slot().loss != job.slot().loss
    assert job.fired()["step"] == 7


@pytest.mark.timeout(120)
def test_out_of_memory_is_the_error_of_torchs_allocator(job):
    """The script ends with the words that torch itself uses, and a named parameter that is not there is refused."""
    job.command("nan_loss", "d0", at_step=2, parameter="lm_head.weight")
    job.command("out_of_memory", at_step=5)
    process = job.start(TRAIN)
    _, err = process.communicate(timeout=90)
    assert process.returncode == 1
    assert "DefaultCPUAllocator: can't allocate memory" in err or "not enough memory" in err
    assert "lm_head.weight" in job.failed("d0")["error"]


@pytest.mark.timeout(120)
def test_straggler_slows_a_script_without_telemetry_at_its_optimizer(job):
    """Without telemetry the optimizer's steps are the steps that get longer."""
    code = """
import time, torch
w = torch.nn.Parameter(torch.ones(1)); optimizer = torch.optim.SGD([w], lr=0.1)
print("up", flush=True)
while True:
    began = time.monotonic(); optimizer.step(); took = time.monotonic() - began
    if took > 0.2: print("slow", flush=True)
    time.sleep(0.005)
"""
    process = job.start(code)
    assert process.stdout.readline() == "up\n"
    job.command("straggler", extra_s=0.2, steps=2, telemetry_wait_s=0)
    assert [process.stdout.readline() for _ in range(2)] == ["slow\n"] * 2
    job.fired()


PAIR = """
import os, torch, torch.distributed as dist
from holdfast import telemetry
torch.set_num_threads(1)
dist.init_process_group("gloo")
i = 0
while True:
    with telemetry.step(i):
        dist.all_reduce(torch.ones(1))
    i += 1
"""


@pytest.mark.timeout(120)
def test_hang_p2p_waits_in_a_real_recv_until_the_abort(job):
    """The rank waits in `dist.recv`, its peer in the all-reduce; the abort makes the peer send, and both go on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    job.command("hang_p2p", ranks=(1,), at_step=50)
    for rank in (0, 1):
        job.start(PAIR, rank, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    assert job.fired(rank=1)["step"] == 50
    deadline = time.monotonic() + 30
    while "recv" not in (stack := job.main_stack(1)) or "all_reduce" not in job.main_stack(0):
        assert time.monotonic() < deadline, stack
    assert "receive_for_ever" in stack
    assert job.slot(1).step_ended == 49
    job.abort()
    job.reach(60, 0)
    job.reach(60, 1)
