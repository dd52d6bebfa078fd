"""nvidia-resiliency-ext tells what it saves: the real package on one rank, in a process of its own, on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.integrations.nvrx import watch
from holdfast.telemetry.slot import SlotView

Rank = Callable[..., SlotView]
EXAMPLE = Path(__file__).parents[2] / "examples" / "nvrx"

START = f"""
import os, sys, time
sys.path.insert(0, {str(EXAMPLE)!r})
import on_cpu
import torch, torch.distributed as dist
from holdfast import telemetry
from holdfast.integrations.nvrx import watch

said = []
tell = telemetry.checkpoint
telemetry.checkpoint = lambda step, durable: (said.append((step, durable)), tell(step, durable=durable))
dist.init_process_group("gloo", init_method="file://" + os.path.abspath("rendezvous"), rank=0, world_size=1)

def until(true):
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)
"""


def test_a_local_save_is_durable_after_the_managers_own_finalization(rank: Rank, tmp_path: Path) -> None:
    """Asynchronous: staged when `save` returns, durable once the queue has finalized it. Synchronous: durable at once."""
    view = rank(START + """
from nvidia_resiliency_ext.checkpointing.async_ckpt.core import AsyncCallsQueue
from nvidia_resiliency_ext.checkpointing.local.basic_state_dict import BasicTensorAwareStateDict
from nvidia_resiliency_ext.checkpointing.local.ckpt_managers.local_manager import LocalCheckpointManager

manager, queue = watch(LocalCheckpointManager("saved")), watch(AsyncCallsQueue(persistent=False))
with on_cpu.OnCpu():
    request = manager.save(BasicTensorAwareStateDict({"w": torch.ones(9)}), 10, is_async=True)
queue.schedule_async_request(request)
until(lambda: os.path.exists("saved/0/iter_0000010_0_local.pt"))
assert said == [(10, False)], said
queue.maybe_finalize_async_calls(blocking=True, no_dist=False)
until(lambda: said == [(10, False), (10, True)])
with on_cpu.OnCpu():
    manager.save(BasicTensorAwareStateDict({"w": torch.ones(9)}), 20)
until(lambda: said[2:] == [(20, True)])
""")  # fmt: skip
    assert (view.checkpoint_staged, view.checkpoint_durable) == (10, 20)
    assert (tmp_path / "saved" / "0" / "iter_0000020_0_local.pt").is_file()


def test_a_file_whose_writer_was_killed_is_not_durable(rank: Rank) -> None:
    """The package finalizes it all the same: the file is looked at, and what it lacks is said."""
    view = rank(START + """
import contextlib, io
from nvidia_resiliency_ext.checkpointing.async_ckpt.torch_ckpt import TorchAsyncCheckpoint

class Slow:
    def __reduce__(self):  # in the writer: half of the file is there when it is killed
        open("half", "w").close()
        time.sleep(60)

saver = watch(TorchAsyncCheckpoint(persistent_queue=False))
errors = io.StringIO()
with contextlib.redirect_stderr(errors):
    saver.async_save({"w": torch.ones(9), "slow": Slow()}, "step_10.pt")
    until(lambda: os.path.exists("half"))
    saver._async_calls_queue.async_calls[0].async_caller.process.kill()
    saver.finalize_async_save(blocking=True)
    until(lambda: "step 10 was not saved" in errors.getvalue())
assert said == [(10, False)], said
assert "the checkpoint of step 10 was not saved: step_10.pt: empty" in errors.getvalue(), errors.getvalue()
saver.async_save({"w": torch.ones(9)}, "step_20.pt")
saver.finalize_async_save(blocking=True, terminate=True)
until(lambda: said[1:] == [(20, False), (20, True)])
""")  # fmt: skip
    assert view.checkpoint_durable == 20


def test_the_step_is_the_programs_own_where_no_path_tells_it(rank: Rank) -> None:
    """A file that is written over: the newest step that telemetry knows; its cost is counted, as steps are told."""
    view = rank(START + """
from nvidia_resiliency_ext.checkpointing.async_ckpt.torch_ckpt import TorchAsyncCheckpoint

saver = watch(TorchAsyncCheckpoint(persistent_queue=False))
saver.async_save({"w": torch.ones(9)}, "rank0.pt")
saver.finalize_async_save(blocking=True)
assert said == [], said  # nobody knows which step it was
for step in range(1, 8):
    with telemetry.step(step):
        pass
saver.async_save({"w": torch.ones(9)}, "rank0.pt")
saver.finalize_async_save(blocking=True, terminate=True)
until(lambda: said == [(7, False), (7, True)])
""")  # fmt: skip
    assert (view.checkpoint_durable, view.saves) == (7, 1)


def test_something_else_is_refused_in_one_sentence() -> None:
    """The sentence names what may be given."""
    with pytest.raises(TypeError, match=r"watch\(\) takes an AsyncCallsQueue, .* not a dict"):
        watch({})
