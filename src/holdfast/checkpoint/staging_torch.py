"""A copy of the state in host memory that training can run away from.

Called by the checkpointer between two training steps: the time spent here is what a save costs the
training. One set of buffers is kept and used again by the next save, so memory stays bounded at one
copy of the state, and no page is faulted in after the first save.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from holdfast.checkpoint.pinned_torch import pinned_like

_Path = tuple[str, ...]


class Stager:
    """Copies nested dicts, lists and tuples of tensors into buffers of its own.

    Tensors that are the same memory (tied weights) share one buffer, so that they are saved once. A tensor that is
    made of others (a DTensor has its rank's part) is copied by its parts and keeps its class.
    """

    def __init__(self) -> None:
        self._buffers: dict[_Path, torch.Tensor] = {}

    def stage(self, parts: Mapping[str, Any]) -> dict[str, Any]:
        """The same structure with every tensor copied to host memory.

        The result stays valid until the next call. Values other than tensors and containers must be
        immutable (numbers, strings): state dicts hold nothing else.
        """
        owners: dict[tuple[Any, ...], tuple[_Path, torch.Tensor]] = {}
        for path, tensor in _tensors((), parts):
            owners.setdefault(_memory(tensor), (path, tensor))
        gpus = {tensor.device for _, tensor in owners.values() if _is_on_gpu(tensor)}
        for gpu in gpus:  # any stream may still write the state
            torch.cuda.synchronize(gpu)
        self._make_room(owners.values())
        for path, tensor in owners.values():
            self._buffers[path].copy_(tensor, non_blocking=tensor.device in gpus)
        for gpu in gpus:
            torch.cuda.current_stream(gpu).synchronize()
        copies = {memory: self._buffers[path] for memory, (path, _) in owners.items()}
        return {name: _copied(value, copies) for name, value in parts.items()}

    def _make_room(self, owners: Iterable[tuple[_Path, torch.Tensor]]) -> None:
        missing = [(path, tensor) for path, tensor in owners if not _fits(self._buffers.get(path), tensor)]
        pinned = [(path, tensor) for path, tensor in missing if _is_plain(tensor) and _is_on_gpu(tensor)]
        made = dict(zip((path for path, _ in pinned), pinned_like([tensor for _, tensor in pinned]), strict=True))
        for path, tensor in missing:
            if path not in made:
                made[path] = torch.empty_like(tensor, device="cpu", pin_memory=_is_on_gpu(tensor), requires_grad=False)
        self._buffers |= made


def _memory(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What only tensors that are the same memory have in common."""
    return (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)


def _fits(buffer: torch.Tensor | None, tensor: torch.Tensor) -> bool:
    return buffer is not None and buffer.shape == tensor.shape and buffer.dtype == tensor.dtype


def _is_on_gpu(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cuda"


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether its elements, and nothing else, are what it holds."""
    return type(tensor) is torch.Tensor and tensor.layout is torch.strided and not tensor.is_quantized


def _tensors(path: _Path, value: Any) -> Iterator[tuple[_Path, torch.Tensor]]:
    if is_traceable_wrapper_subclass(value):
        for name in value.__tensor_flatten__()[0]:
            yield from _tensors((*path, name), getattr(value, name))
    elif isinstance(value, torch.Tensor):
        yield path, value.detach()
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors((*path, repr(key)), item)
    elif isinstance(value, list) or type(value) is tuple:
        for index, item in enumerate(value):
            yield from _tensors((*path, str(index)), item)


def _copied(value: Any, copies: Mapping[tuple[Any, ...], torch.Tensor]) -> Any:
    if is_traceable_wrapper_subclass(value):
        names, context = value.__tensor_flatten__()
        inner = {name: _copied(getattr(value, name), copies) for name in names}
        return type(value).__tensor_unflatten__(inner, context, value.size(), value.stride())
    if isinstance(value, torch.Tensor):
        return copies[_memory(value.detach())]
    if isinstance(value, Mapping):
        return {key: _copied(item, copies) for key, item in value.items()}
    if isinstance(value, list):
        return [_copied(item, copies) for item in value]
    if type(value) is tuple:
        return tuple(_copied(item, copies) for item in value)
    return value
