"""The copy in host memory is whole before training goes on, on whichever GPUs the state lies."""

import torch

from holdfast.checkpoint.staging_torch import Stager


class OnGpu0(torch.Tensor):
    device = torch.device("cuda", 0)


class OnGpu1(torch.Tensor):
    device = torch.device("cuda", 1)


def test_every_gpu_of_the_state_is_waited_for(monkeypatch):
    """A program may keep layers on several GPUs, each of which copies in a stream of its own."""
    waited = []
    empty_like = torch.empty_like

    class Stream:
        def __init__(self, device):
            self.device = device

        def synchronize(self):
            waited.append(str(self.device))

    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch, "empty_like", lambda tensor, **_on: empty_like(tensor.as_subclass(torch.Tensor)))
    state = {"a": torch.ones(3).as_subclass(OnGpu0), "b": torch.ones(4).as_subclass(OnGpu1), "c": torch.ones(5)}
    Stager().stage(state)
    assert sorted(waited) == ["cuda:0", "cuda:1"]
