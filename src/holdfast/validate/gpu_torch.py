"""The `gpu` suite: matrix products by type, memory and host bandwidth, the same bits twice and on every node. A step.

Runs on any torch device; `Options.device` = `cpu` is how it is tested without a GPU. Bits are compared within the node
(twice, and between its GPUs) and, since the digest is a fact that must be the same on all nodes, across the fleet: that
finds silent corruption. Inputs are made on the host, so that they are equal everywhere. Time: about ten seconds a GPU.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable

import torch

from holdfast.validate.registry import Options
from holdfast.validate.results import Item, Verdict, absent, failed

DTYPES = ("float32", "bfloat16", "float16")
SIDE = {"cuda": 8192, "cpu": 512}
COPY_MIB = {"cuda": 1024, "cpu": 64}
BITS_SIDE = {"cuda": 2048, "cpu": 256}
ROUNDS = 5
SECONDS = 0.5
CORRUPT = "keep work away: silent corruption; run DCGM's memory and diagnostic tests (`holdfast check dcgm-diag-3`)"


def measure(options: Options) -> list[Item]:
    """The step."""
    kind = options.device or ("cuda" if torch.cuda.is_available() else "")
    if not kind:
        return [absent("gpu.devices", "PyTorch sees no GPU (--device cpu measures the host)")]
    devices = (
        [torch.device(kind)] if kind != "cuda" else [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
    )
    name = torch.cuda.get_device_name(0) if kind == "cuda" else f"CPU {torch.backends.cpu.get_cpu_capability()}"
    items = [Item(name="gpu.devices", text=f"{len(devices)} x {name}", same=True)]
    rates: dict[str, list[float]] = {}
    digests: dict[int, str] = {}
    for index, device in enumerate(devices):
        for item, rate in _rates(device, deep=options.deep).items():
            rates.setdefault(item, []).append(rate)
        found = {bits(device) for _ in range(ROUNDS if options.deep else 2)}
        digests[index] = found.pop() if len(found) == 1 else ""
    items += [_slowest(item, found) for item, found in rates.items()]
    return items + judged_bits(digests, name)


def _rates(device: torch.device, *, deep: bool) -> dict[str, float]:
    seconds = SECONDS * (10 if deep else 1)
    found = {f"gpu.matmul.{dtype}": matmul(device, getattr(torch, dtype), seconds) for dtype in DTYPES}
    found["gpu.memory_copy"] = memory_copy(device, seconds)
    if device.type != "cpu":
        found["gpu.h2d"], found["gpu.d2h"] = host_copies(device, seconds)
    return found


UNITS = {"matmul": "TFLOP/s", "memory_copy": "GB/s", "h2d": "GB/s, pinned", "d2h": "GB/s, pinned"}


def _slowest(name: str, found: list[float]) -> Item:
    """The node's figure is that of its slowest GPU; how far apart they are is told."""
    slowest, fastest = min(found), max(found)
    unit = UNITS[name.split(".")[1]]
    index = found.index(slowest)
    item = Item(name=name, value=slowest, unit=unit, better="higher")
    if len(found) > 1 and slowest < 0.85 * fastest:
        why = f"GPU {index} reaches {slowest:.3g} where the best of this node reaches {fastest:.3g}"
        advice = "compare clocks, power and temperature (`nvidia-smi -q -d CLOCK,POWER,TEMPERATURE`), PCIe width"
        return item.judged(Verdict.WARN, why, advice)
    return item


def _synced(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _per_call(call: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Seconds of a call: the best of groups, each long against the clock's grain."""
    call()
    _synced(device)
    best, begin = float("inf"), time.perf_counter()
    while time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        for _ in range(5):
            call()
        _synced(device)
        best = min(best, (time.perf_counter() - start) / 5)
    return best


def matmul(device: torch.device, dtype: torch.dtype, seconds: float) -> float:
    """TFLOP/s of a square product: 2 n^3 operations.

    The factors are random: equal numbers switch few transistors, and a GPU at its power limit multiplies them faster.
    """
    side = SIDE["cuda" if device.type == "cuda" else "cpu"]
    a, b, out = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(3))
    took = _per_call(lambda: torch.mm(a, b, out=out), device, seconds)
    return 2 * side**3 / took / 1e12


def memory_copy(device: torch.device, seconds: float) -> float:
    """GB/s, bytes read and written."""
    count = COPY_MIB["cuda" if device.type == "cuda" else "cpu"] << 20
    source = torch.zeros(count, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * count / _per_call(lambda: target.copy_(source), device, seconds) / 1e9


def host_copies(device: torch.device, seconds: float) -> tuple[float, float]:
    """GB/s to the device and back, from memory that is pinned."""
    count = 256 << 20
    host = torch.empty(count, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(count, dtype=torch.uint8, device=device)
    up = _per_call(lambda: there.copy_(host, non_blocking=True), device, seconds)
    down = _per_call(lambda: host.copy_(there, non_blocking=True), device, seconds)
    return count / up / 1e9, count / down / 1e9


def bits(device: torch.device) -> str:
    """A digest of the bits of products, a sum and an element-wise function of inputs that are equal everywhere."""
    side = BITS_SIDE["cuda" if device.type == "cuda" else "cpu"]
    maker = torch.Generator(device="cpu").manual_seed(20_240_917)
    a = torch.rand(side, side, generator=maker).to(device)
    b = torch.rand(side, side, generator=maker).to(device)
    digest = hashlib.sha256()
    threads = torch.get_num_threads()
    if device.type == "cpu":
        # How many threads share a sum, and so its rounding, would hang on how busy the machine is.
        torch.set_num_threads(1)
    try:
        for found in (a @ b, (a.bfloat16() @ b.bfloat16()).float(), (a * b).sum(dim=1), torch.tanh(a) * b):
            digest.update(found.detach().cpu().contiguous().numpy().tobytes())
    finally:
        torch.set_num_threads(threads)
    return digest.hexdigest()[:16]


def judged_bits(digests: dict[int, str], name: str) -> list[Item]:
    """One item: equal bits on all GPUs of the node, and a digest that the fleet compares."""
    twice = [index for index, digest in digests.items() if not digest]
    item = f"gpu.bits.{name.replace(' ', '_')}"
    if twice:
        why = f"the same computation gave two results on GPU {', '.join(map(str, twice))}"
        return [failed(item, why, CORRUPT, same=True, text="not the same twice")]
    values = list(digests.values())
    common = max(set(values), key=values.count)
    odd = [index for index, digest in digests.items() if digest != common]
    if odd:
        why = f"GPU {', '.join(map(str, odd))} computes other bits than the others of this node"
        return [failed(item, why, CORRUPT, same=True, text=common)]
    return [Item(name=item, same=True, text=common)]
