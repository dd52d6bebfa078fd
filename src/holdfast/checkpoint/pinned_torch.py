"""Host memory that GPUs copy into at full speed, made by several threads.

Called by the stager at the first save, while the training waits. PyTorch pins one tensor after another, page by page in
one thread, and rounds each size up to a power of two. Here buffers lie together in pieces, as huge pages where the
system has them, and each thread maps, touches and registers a piece.
"""

import contextlib
import ctypes
import math
import mmap
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

PIECE = 64 << 20
"""Bytes from which a piece is full; a tensor never spans two, since a copy may not."""
THREADS_MAX = 8
ALIGNMENT = 512
"""A tensor begins at a multiple of so many bytes, as in PyTorch's own allocators."""
HUGE_PAGE = 2 << 20
PORTABLE = 1
"""cudaHostRegisterPortable: pinned for every GPU of the process."""


def pinned_like(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Host tensors of these shapes, strides and types. A piece stays pinned as long as one of its tensors lives.

    A piece that cannot be pinned is ordinary memory: copies into it are slower, and right.
    """
    pieces = list(_pieces(tensors))
    with ThreadPoolExecutor(THREADS_MAX) as pool:  # an error of CUDA is its thread's own, and ends with it
        return [buffer for made in pool.map(_made, pieces) for buffer in made]


def _cuda() -> Any:
    """Its runtime's calls have no types."""
    return torch.cuda


def _pieces(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    piece: list[torch.Tensor] = []
    size = 0
    for tensor in tensors:
        piece.append(tensor)
        size += _room(tensor)
        if size >= PIECE:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _room(tensor: torch.Tensor) -> int:
    return math.ceil(tensor.numel() * tensor.element_size() / ALIGNMENT) * ALIGNMENT


class _Memory(mmap.mmap):
    """Anonymous memory that is unregistered before it is given back."""

    registered = 0
    """Its address, when CUDA knows it."""

    def __del__(self) -> None:
        if self.registered:
            _cuda().cudart().cudaHostUnregister(self.registered)


def _made(piece: list[torch.Tensor]) -> list[torch.Tensor]:
    size = math.ceil(max(1, sum(map(_room, piece))) / HUGE_PAGE) * HUGE_PAGE
    memory = _Memory(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_DONTFORK)  # a child's copy on write must not part the GPU's pages from ours
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    ctypes.memset(whole.data_ptr(), 0, size)
    with torch.cuda.device(piece[0].device):  # or this thread would open the first GPU
        if int(_cuda().cudart().cudaHostRegister(whole.data_ptr(), size, PORTABLE)) == 0:
            memory.registered = whole.data_ptr()
    buffers, at = [], 0
    for tensor in piece:
        flat = whole[at : at + tensor.numel() * tensor.element_size()].view(tensor.dtype)
        buffers.append(flat.as_strided(tensor.shape, torch.empty_like(tensor, device="meta").stride()))
        at += _room(tensor)
    return buffers
