"""The suites that load PyTorch, on the processor; the same code runs on CUDA."""

from __future__ import annotations

import asyncio
import os

import pytest
import torch

from holdfast.adapters.clock import SystemClock
from holdfast.validate.examination import Examination
from holdfast.validate.gpu_torch import bits, judged_bits
from holdfast.validate.hands import Alone
from holdfast.validate.registry import Options, chosen
from holdfast.validate.results import Run, Verdict
from holdfast.validate.results_kept import Results
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
