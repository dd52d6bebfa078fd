"""The `pytorch` suite: versions, build, devices, back ends with one all-reduce each, threads, compilation. A step.

Back ends are tried with a group of this process alone: whether they initialise and compute is seen without another
node. Time: the import of PyTorch, then seconds; torch.compile (deep only) may take a minute.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import tempfile
import time
from typing import Any

import torch
import torch.distributed as dist

from holdfast.validate.registry import Options
from holdfast.validate.results import Item, Verdict, absent, failed, warned

GROUP_S = 60.0
MIB = 1 << 20
CLEAR = "empty the compiler's cache (TORCHINDUCTOR_CACHE_DIR); if it stays, train without torch.compile on this version"


def look(options: Options) -> list[Item]:
    """The step."""
    items = [
        Item(name="pytorch.version", text=str(torch.__version__), same=True),
        Item(name="pytorch.build", text=build(), same=True),
        *_devices(),
        *_threads(),
        *(_backend(backend) for backend in ("gloo", "nccl", "mpi")),
    ]
    return [*items, _compiled()] if options.deep else items


def build() -> str:
    """What this PyTorch was built for."""
    if torch.version.cuda:
        return f"CUDA {torch.version.cuda}"
    hip = getattr(torch.version, "hip", None)
    return f"ROCm {hip}" if hip else "CPU"


def _devices() -> list[Item]:
    if build() == "CPU":
        return [Item(name="pytorch.devices", text="CPU build: no GPU is used", same=True)]
    if not torch.cuda.is_available():
        advice = "compare driver and CUDA versions (`nvidia-smi`), CUDA_VISIBLE_DEVICES, /dev/nvidia*"
        why = f"PyTorch is built for {build()} and sees no GPU"
        return [failed("pytorch.devices", why, advice, text="none", same=True)]
    count = torch.cuda.device_count()
    items = [Item(name="pytorch.devices", text=f"{count} x {torch.cuda.get_device_name(0)}", same=True)]
    for index in range(count):
        free, total = torch.cuda.mem_get_info(index)
        used = (total - free) / total
        item = Item(name=f"pytorch.memory.{index}", value=free / MIB, unit="MiB free", better="higher")
        if used > 0.1:
            why = f"{used:.0%} of the memory of GPU {index} is taken before anything runs"
            advice = "look for left-over processes: `holdfast check gpu-busy left-over`"
            item = item.judged(Verdict.WARN, why, advice)
        items.append(item)
    cudnn: Any = torch.backends.cudnn
    nccl: Any = torch.cuda.nccl
    if cudnn.is_available():
        items.append(Item(name="pytorch.cudnn", text=str(cudnn.version()), same=True))
    with contextlib.suppress(AttributeError, RuntimeError):
        items.append(Item(name="pytorch.nccl_version", text=".".join(map(str, nccl.version())), same=True))
    return items


def _threads() -> list[Item]:
    allowed, used = len(os.sched_getaffinity(0)), torch.get_num_threads()
    name, text = "pytorch.threads", f"{used} of {allowed} processors"
    if used == 1 and allowed > 1 and os.environ.get("OMP_NUM_THREADS") == "1":
        why = "OMP_NUM_THREADS=1: work on the host, such as optimizers that are offloaded, uses one thread"
        advice = "set it to the processors of a rank; torchrun sets it to 1 when it is not set"
        return [warned(name, why, advice, text=text)]
    return [Item(name=name, text=text)]


def _backend(backend: str) -> Item:
    """A group of one, and one all-reduce in it."""
    name = f"pytorch.{backend}"
    available = {
        "gloo": dist.is_gloo_available(), "nccl": dist.is_nccl_available() and torch.cuda.is_available(),
        "mpi": dist.is_mpi_available(),
    }[backend]  # fmt: skip
    if not available:
        return absent(name, "this build of PyTorch does not have it, or there is no GPU")
    device = "cuda" if backend == "nccl" else "cpu"
    try:
        with tempfile.TemporaryDirectory(prefix="holdfast-group-") as folder:
            store = dist.FileStore(f"{folder}/store", 1)  # type: ignore[attr-defined]
            limit = dt.timedelta(seconds=GROUP_S)
            if backend == "mpi":
                dist.init_process_group(backend, timeout=limit)
            else:
                dist.init_process_group(backend, store=store, rank=0, world_size=1, timeout=limit)
            try:
                start = time.perf_counter()
                data = torch.arange(1024, dtype=torch.float32, device=device)
                dist.all_reduce(data)
                same = bool((data == torch.arange(1024, dtype=torch.float32, device=device)).all().item())
                took = time.perf_counter() - start
            finally:
                dist.destroy_process_group()
    except (RuntimeError, ValueError, OSError) as error:
        advice = "run it with NCCL_DEBUG=INFO or TORCH_CPP_LOG_LEVEL=INFO and read it with `holdfast explain`"
        return failed(name, str(error).splitlines()[0][:300], advice)
    if not same:
        return failed(name, "its all-reduce gave wrong sums", "keep work away from it")
    return Item(name=name, value=took * 1e3, unit="ms for the first all-reduce")


def _compiled() -> Item:
    """Does torch.compile work here, and give the same result?"""

    def wave(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) * 2 + x * x

    data = torch.linspace(0, 1, 4096)
    try:
        start = time.perf_counter()
        found = torch.compile(wave)(data)
        took = time.perf_counter() - start
    except Exception as error:  # noqa: BLE001 - a compiler, its cache and its back ends throw what they like
        why = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
        return warned("pytorch.compile", why, "install a C++ compiler and Triton")
    if not torch.allclose(found, wave(data), atol=1e-5):
        return failed("pytorch.compile", "compiled code gives other results", CLEAR)
    return Item(name="pytorch.compile", value=took, unit="s for the first call")
