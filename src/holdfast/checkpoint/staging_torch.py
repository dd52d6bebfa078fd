"""A copy of the state in host memory that training can run away from.

Called by the checkpointer between two training steps: the time spent here is what a save costs the
training. One set of buffers is kept and used again by the next save, so memory stays bounded at one
copy of the state, and no page is faulted in after the first save.
"""

from collections.abc import Mapping
from typing import Any

import torch


class Stager:
    """Copies nested dicts, lists and tuples of tensors into buffers of its own.

    Tensors that are the same memory (tied weights) share one buffer, so that they are saved once.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, ...], torch.Tensor] = {}
        self._seen: dict[tuple[Any, ...], torch.Tensor] = {}

    def stage(self, parts: Mapping[str, Any]) -> dict[str, Any]:
        """The same structure with every tensor copied to host memory.

        The result stays valid until the next call. Values other than tensors and containers must be
        immutable (numbers, strings): state dicts hold nothing else.
        """
        self._seen = {}
        copied = {name: self._copy((name,), value) for name, value in parts.items()}
        for device in {key[-1] for key in self._seen if key[-1].type == "cuda"}:
            torch.cuda.current_stream(device).synchronize()
        self._seen = {}
        return copied

    def _copy(self, path: tuple[str, ...], value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(path, value.detach())
        if isinstance(value, Mapping):
            return {key: self._copy((*path, str(key)), item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._copy((*path, str(index)), item) for index, item in enumerate(value)]
        if isinstance(value, tuple) and type(value) is tuple:
            return tuple(self._copy((*path, str(index)), item) for index, item in enumerate(value))
        return value

    def _tensor(self, path: tuple[str, ...], tensor: torch.Tensor) -> torch.Tensor:
        identity = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        if tensor.numel() and identity in self._seen:
            return self._seen[identity]
        buffer = self._buffers.get(path)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            on_device = tensor.device.type == "cuda"
            buffer = torch.empty_like(tensor, device="cpu", pin_memory=on_device, requires_grad=False)
            self._buffers[path] = buffer
        buffer.copy_(tensor, non_blocking=True)
        self._seen[identity] = buffer
        return buffer
