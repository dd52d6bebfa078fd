"""The suites that load PyTorch, on the processor; the same code runs on CUDA."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

from holdfast.adapters.clock import SystemClock
from holdfast.validate import gpu_torch, pytorch_torch, sweep_torch
from holdfast.validate.examination import Examination
from holdfast.validate.gpu_torch import bits, judged_bits
from holdfast.validate.hands import Alone
from holdfast.validate.registry import Options, chosen
from holdfast.validate.results import Item, Run, Verdict
from holdfast.validate.results_kept import Results
from holdfast.validate.sweep_torch import device_of, ranks_with_gpu
from holdfast.validate.under_test import Asked, NodesUnderTest
from holdfast.validate.wire import Hello

pytestmark = pytest.mark.timeout(600)


def examined(*suites: str, **options: object) -> Run:
    """These suites on this machine, each step a process."""

    async def body() -> Run:
        hands = Alone(Hello(node="here", rank=0, boot="b", address="127.0.0.1"), dict(os.environ))
        asked = Asked(suites=chosen(suites), options=Options(**options))
        nodes = NodesUnderTest(hands, asked, clock=SystemClock(), results=Results(None))
        return await Examination(nodes, baselines=lambda _kind: None).run()

    return asyncio.run(body())


def test_pytorch_its_back_ends_and_a_sweep_of_two_processes_on_the_processor() -> None:
    """Versions and build are facts of the fleet; gloo computes; the sweep has no wrong element; nothing is blamed."""
    run = examined("pytorch", "gpu", "nccl", device="cpu")
    node = run.nodes[0]
    assert run.verdict is Verdict.PASS, [(item.name, item.why) for item in node.items if item.why]
    assert node.item("pytorch.version").text == str(torch.__version__)
    assert node.item("pytorch.gloo").value > 0
    assert node.item("pytorch.mpi").verdict is Verdict.ABSENT
    for name in ("all_reduce", "all_gather", "reduce_scatter"):
        assert node.item(f"nccl.sweep.{name}").value > 0
    for dtype in ("float32", "bfloat16", "float16"):
        assert node.item(f"gpu.matmul.{dtype}").value > 0
    assert node.item("gpu.memory_copy").value > 0
    (digest,) = (item for item in node.items if item.name.startswith("gpu.bits."))
    assert (len(digest.text), digest.same) == (16, True)


def test_bits_are_the_same_twice_and_other_bits_fail() -> None:
    """Twice on one device; a GPU that differs from the others of its node; one that differs from itself."""
    device = torch.device("cpu")
    assert bits(device) == bits(device)
    assert judged_bits({0: "aa", 1: "aa"}, "H100")[0].verdict is Verdict.PASS
    odd = judged_bits({0: "aa", 1: "bb", 2: "aa"}, "H100")[0]
    assert (odd.verdict, odd.why) == (Verdict.FAIL, "GPU 1 computes other bits than the others of this node")
    unsteady = judged_bits({0: "aa", 1: ""}, "H100")[0]
    assert "two results on GPU 1" in unsteady.why


def test_two_ranks_of_a_node_take_a_gpu_each_and_never_share_one() -> None:
    """NCCL refuses two ranks on one GPU: recorded on an H200, `Duplicate GPU detected : rank 0 and rank 1`."""
    assert device_of(Options(gpu=1, gpus=2), 8) == torch.device("cuda", 1)
    assert device_of(Options(gpu=0, gpus=1), 1) == torch.device("cuda", 0)
    assert device_of(Options(gpu=1, gpus=2), 1) == torch.device("cpu")
    assert device_of(Options(device="cpu"), 8) == torch.device("cpu")
    assert device_of(Options(), 0) == torch.device("cpu")


def test_ranks_agree_whether_all_have_a_gpu() -> None:
    """A node whose driver fails would otherwise wait in gloo while the others wait in NCCL."""
    store = dist.HashStore()
    devices = [torch.device("cuda", 0), torch.device("cuda", 0), torch.device("cpu")]
    with ThreadPoolExecutor(3) as pool:
        told = list(pool.map(lambda own: ranks_with_gpu(store, own, 3), devices))
    assert told == [2, 2, 2]


def test_a_rank_without_a_gpu_is_at_fault_where_others_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep falls back to gloo, so that it ends, and the rank's own result says why it fails."""
    monkeypatch.setattr(sweep_torch, "ranks_with_gpu", lambda _store, _own, _world: 1)
    found = sweep_torch.sweep(Options(listen="127.0.0.1", device="cpu", size_max=1), lambda _told: None)
    dist.destroy_process_group()
    assert next(item.unit for item in found if item.value is not None) == "GB/s bus bandwidth, gloo, 1 ranks"
    assert [item.name for item in found if item.verdict is Verdict.FAIL] == ["nccl.sweep.gpu"]


def test_the_parts_of_the_pytorch_suite_have_names_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A figure does not take the place of a version, as on a machine with a GPU."""
    monkeypatch.setattr(pytorch_torch, "build", lambda: "CUDA 13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _index: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _index: (142_629 << 20, 143_771 << 20))
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 28, 9))
    monkeypatch.setattr(pytorch_torch, "_backend", lambda backend: Item(name=f"pytorch.{backend}", value=1.0))
    items = pytorch_torch.look(Options())
    assert len({item.name for item in items}) == len(items)
    assert next(item.text for item in items if item.name == "pytorch.nccl_version") == "2.28.9"


def test_factors_of_the_matrix_product_are_random(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal numbers are multiplied faster at a GPU's power limit: 890 against 777 TFLOP/s on an H200."""
    seen: list[torch.Tensor] = []
    monkeypatch.setattr(torch, "mm", lambda a, b, out: seen.extend((a, b, out)))
    monkeypatch.setitem(gpu_torch.SIDE, "cpu", 16)
    gpu_torch.matmul(torch.device("cpu"), torch.float32, 0.0)
    assert float(seen[0].std()) > 0.5
