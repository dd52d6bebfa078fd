"""The copy in host memory is whole before training goes on, on whichever GPUs the state lies."""

import contextlib
import gc
import os
import threading
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from holdfast.checkpoint import pinned_torch, staging_torch
from holdfast.checkpoint.pinned_torch import ALIGNMENT, pinned_like
from holdfast.checkpoint.staging_torch import Stager


class OnGpu0(torch.Tensor):
    device = torch.device("cuda", 0)


class OnGpu1(torch.Tensor):
    device = torch.device("cuda", 1)


class Runtime:
    """CUDA's answers without CUDA."""

    def __init__(self, answer: int = 0) -> None:
        self.answer = answer
        self.pinned: dict[int, int] = {}
        self.threads: set[int] = set()

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802 - CUDA's name
        assert flags == 1
        self.threads.add(threading.get_ident())
        self.pinned[address] = size
        return self.answer

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802 - CUDA's name
        del self.pinned[address]
        return 0


@pytest.fixture
def runtime(monkeypatch):
    made = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: made)
    monkeypatch.setattr(torch.cuda, "device", lambda _device: contextlib.nullcontext())
    return made


def test_every_gpu_of_the_state_is_waited_for(monkeypatch):
    """Whatever stream still writes the state ends before the copies begin, and they end before training goes on."""
    order = []
    empty_like = torch.empty_like

    class Stream:
        def __init__(self, device):
            self.device = device

        def synchronize(self):
            order.append(f"copied {self.device}")

    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: order.append(f"written {device}"))
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch, "empty_like", lambda tensor, **_on: empty_like(tensor.as_subclass(torch.Tensor)))
    state = {"a": torch.ones(3).as_subclass(OnGpu0), "b": torch.ones(4).as_subclass(OnGpu1), "c": torch.ones(5)}
    Stager().stage(state)
    assert sorted(order[:2]) == ["written cuda:0", "written cuda:1"]
    assert sorted(order[2:]) == ["copied cuda:0", "copied cuda:1"]


def test_the_copy_has_the_states_form_and_its_own_memory():
    """Nested containers, tied weights once, keys that only look alike apart; the next save takes the same buffers."""
    tied = torch.arange(6.0)
    state = {"m": {1: torch.ones(2), "1": torch.zeros(2)}, "l": [tied, (tied, "text", 3)], "none": torch.empty(0)}
    stager = Stager()
    first = stager.stage(state)
    assert first["m"][1].tolist() == [1.0, 1.0]
    assert first["m"]["1"].tolist() == [0.0, 0.0]
    assert first["l"][0] is first["l"][1][0]
    assert first["l"][1][1:] == ("text", 3)
    assert first["none"].shape == (0,)
    tied += 1
    second = stager.stage(state)
    assert second["l"][0] is first["l"][0]
    assert second["l"][0].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert stager.stage({"l": [torch.ones(2, 2)]})["l"][0].shape == (2, 2)


def test_a_ranks_part_of_a_sharded_tensor_is_copied_and_keeps_its_class(tmp_path):
    """Save after save: PyTorch 2.11's own stager can be asked once only, and ended the training of an H100."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    try:
        weight = distribute_tensor(torch.arange(8.0), init_device_mesh("cpu", (1,)), [Shard(0)])
        stager = Stager()
        first = stager.stage({"m": {"weight": weight}})["m"]["weight"]
        weight.to_local().add_(1)
        assert first.to_local().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
        second = stager.stage({"m": {"weight": weight}})["m"]["weight"]
    finally:
        dist.destroy_process_group()
    assert type(second) is DTensor
    assert (second.shape, second.placements) == (weight.shape, weight.placements)
    assert second.to_local().tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    assert second.to_local().data_ptr() == first.to_local().data_ptr() != weight.to_local().data_ptr()


def test_tensors_of_a_gpu_get_pinned_memory(monkeypatch):
    """Those of the processor do not, nor those whose class says more than their elements."""
    asked = []
    monkeypatch.setattr(staging_torch, "_is_on_gpu", lambda tensor: tensor.numel() != 5)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _gpu: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _gpu: SimpleNamespace(synchronize=lambda: None))
    monkeypatch.setattr(
        staging_torch,
        "pinned_like",
        lambda found: [asked.append(one.numel()) or torch.empty_like(one) for one in found],
    )
    Stager().stage({"a": torch.ones(3), "b": torch.ones(5)})
    assert asked == [3]


def test_pinned_memory_is_as_the_tensors_and_lives_as_long_as_they_do(runtime, monkeypatch):
    """Types, shapes, strides; a copy never spans two registrations; the last tensor of a piece takes its pin along."""
    monkeypatch.setattr(pinned_torch, "PIECE", 4 * ALIGNMENT)
    tensors = [
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(300),
        torch.tensor(7, dtype=torch.int64),
        torch.empty(0),
        torch.randn(9).to(torch.bfloat16),
        torch.tensor([True, False]),
    ]
    made = pinned_like(tensors)
    for buffer, tensor in zip(made, tensors, strict=True):
        assert (buffer.shape, buffer.dtype, buffer.stride()) == (tensor.shape, tensor.dtype, tensor.stride())
        assert buffer.data_ptr() % ALIGNMENT == 0
        buffer.copy_(tensor)
    assert all(torch.equal(buffer, tensor) for buffer, tensor in zip(made, tensors, strict=True))
    assert len(runtime.pinned) == 2
    for buffer in made:
        holding = [
            at for at, size in runtime.pinned.items() if at <= buffer.data_ptr() < at + size or not buffer.numel()
        ]
        assert holding
    assert threading.get_ident() not in runtime.threads
    del buffer, made[1:]
    gc.collect()
    assert len(runtime.pinned) == 1
    made.clear()
    gc.collect()
    assert not runtime.pinned


def test_memory_that_cannot_be_pinned_is_ordinary(runtime):
    """An error of the registration is not an error of the save."""
    runtime.answer = 801
    buffer = pinned_like([torch.ones(3)])[0]
    buffer.copy_(torch.arange(3.0))
    assert buffer.tolist() == [0.0, 1.0, 2.0]
    del buffer
    gc.collect()
    assert len(runtime.pinned) == 1  # never asked to let go of what it did not take


def test_a_forked_child_does_not_hold_the_memory(runtime):
    """Data loaders fork: pages that were shared with them would be copied under the GPU's hands."""
    buffer = pinned_like([torch.ones(3)])[0]
    address = buffer.data_ptr()
    child = os.fork()
    if child == 0:
        lines = open("/proc/self/maps").read().splitlines()  # noqa: SIM115 - the child ends at once
        spans = [[int(end, 16) for end in line.split()[0].split("-")] for line in lines]
        os._exit(any(low <= address < high for low, high in spans))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
