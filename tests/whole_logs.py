"""Pieces of whole logs in the public formats of the tools, with made-up names, and the check of their explanation."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass, field
from functools import lru_cache
from types import SimpleNamespace
from unittest import mock

from holdfast.adapters.catalogue_files import read_catalogue
from holdfast.cli.explain import explain_logs
from holdfast.detect.matcher import Matcher
from holdfast.detect.reading import source_of

MATCHER = Matcher(read_catalogue())


@dataclass
class Whole:
    name: str
    text: str
    verdict: str
    cause: tuple[str, ...] = ()
    """Any of these prefixes."""
    domain: str = ""
    ranks: tuple[int, ...] | None = None
    nodes: tuple[str, ...] | None = None
    helps: bool | str | None = "any"
    others: dict[str, str] = field(default_factory=dict)


def megatron(n=30, start=1, prefix="", minute=0):
    return "".join(
        f"{prefix}[2025-03-01 10:{minute + i // 6:02d}:{(i % 6) * 10:02d}] iteration {start + i:8d}/  500000 | consumed samples: {1024 * (start + i):12d} | elapsed time per iteration (ms): 10012.3 | learning rate: 1.0E-04 | global batch size:  1024 | lm loss: 2.{700 - i:03d}000E+00 | loss scale: 1.0 | grad norm: 0.412 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
        for i in range(n)
    )


def titan(n=20, start=1, minute=0):
    return "".join(
        f"[rank0]:[titan] 2025-03-01 10:{minute + i // 6:02d}:{(i % 6) * 10:02d},051 - root - INFO - step: {start + i:2d}  loss:  {8 - i / 10:.4f}  grad_norm:  0.5926  memory:  9.46GiB(64.99%)  tps: 7,094  tflops: 0.51  mfu: 0.16%\n"
        for i in range(n)
    )


def hf(n=30, total=1000):
    out = ""
    for i in range(1, n + 1):
        out += f"\r{100 * i // total:3d}%|{'#' * (i // 4)}         | {i}/{total} [00:{i % 60:02d}<12:00,  1.01s/it]"
        if i % 10 == 0:
            out += f"\n{{'loss': {3 - i / 100:.4f}, 'grad_norm': 1.41, 'learning_rate': 2e-05, 'epoch': {i / total:.2f}}}\n"
    return out + "\n"


def traceback(rank, error, *, file="/home/mei/train.py", line=88, function="main", fmt="[rank{r}]: "):
    p = fmt.format(r=rank)
    return (
        f"{p}Traceback (most recent call last):\n"
        f'{p}  File "{file}", line {line}, in {function}\n{p}    out = step(batch)\n'
        f"{p}          ^^^^^^^^^^^\n"
        f'{p}  File "/opt/env/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1511, in _wrapped_call_impl\n'
        f"{p}    return self._call_impl(*args, **kwargs)\n{p}{error}\n"
    )


def elastic(
    rank, code, host="node07", trace="To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
):
    return (
        "Traceback (most recent call last):\n"
        '  File "/opt/env/bin/torchrun", line 8, in <module>\n    sys.exit(main())\n'
        '  File "/opt/env/lib/python3.11/site-packages/torch/distributed/launcher/api.py", line 264, in launch_agent\n'
        "    raise ChildFailedError(\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        "============================================================\n/home/mei/train.py FAILED\n"
        "------------------------------------------------------------\nFailures:\n  <NO_OTHER_FAILURES>\n"
        "------------------------------------------------------------\nRoot Cause (first observed failure):\n[0]:\n"
        f"  time      : 2025-03-01_10:30:00\n  host      : {host}\n  rank      : {rank} (local_rank: {rank % 8})\n"
        f"  exitcode  : {code} (pid: 4711)\n  error_file: <N/A>\n  traceback : {trace}\n"
        "============================================================\n"
    )


def watchdog(rank, seq=77, op="ALLREDUCE", timeout=600000, stamp="E301 10:40:00.123456789"):
    return (
        f"[rank{rank}]:[{stamp} ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn=1, NumelOut=1, Timeout(ms)={timeout}) ran for {timeout + 60} milliseconds before timing out.\n"
        f"[rank{rank}]:[{stamp} ProcessGroupNCCL.cpp:1664] [PG 0 Rank {rank}] Exception (either an error or timeout) detected by watchdog at work: {seq}, last enqueued NCCL work: {seq + 2}, last completed NCCL work: {seq - 1}.\n"
        f"[rank{rank}]:[{stamp} ProcessGroupNCCL.cpp:621] [Rank {rank}] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.\n"
        f"[rank{rank}]:[{stamp} ProcessGroupNCCL.cpp:627] [Rank {rank}] To avoid data inconsistency, we are taking the entire process down.\n"
    )


def ended_by_abort(rank):
    return (
        f"[rank{rank}]: terminate called after throwing an instance of 'c10::DistBackendError'\n"
        f"[rank{rank}]:   what():  [PG 0 Rank {rank}] Process group watchdog thread terminated with exception: [Rank {rank}] NCCL timeout\n"
        f"Fatal Python error: Aborted\n\n"
    )


def closing(pids=(1, 2, 3)):
    return "".join(
        f"W0301 10:30:00.000000 100 torch/distributed/elastic/multiprocessing/api.py:897] Sending process {p} closing signal SIGTERM\n"
        for p in pids
    )


NOISE = (
    "[W socket.cpp:464] [c10d] The server socket cannot be initialized on [::]:29500 (errno: 97 - Address family not supported by protocol).\n"
    "/opt/env/lib/python3.11/site-packages/torch/utils/checkpoint.py:429: UserWarning: torch.utils.checkpoint: the use_reentrant parameter should be passed explicitly.\n"
    "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being overloaded\n"
    "node07:4711:4712 [0] NCCL INFO NCCL_IB_TIMEOUT set by environment to 22.\n"
    "wandb: Network error (ConnectionError), entering retry loop.\n"
)
GLOO = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:38032"
DONE_TITAN = "[rank0]:[titan] 2025-03-01 10:50:00,051 - root - INFO - Training completed\n"


@lru_cache(maxsize=4)
def steps(size, label=""):
    """At least so many bytes of steps; without times or numbers, so that no log after them contradicts them."""
    line = label + "{{'loss': 2.{:02d}3, 'grad_norm': 1.4142, 'learning_rate': 4.999e-05, 'epoch': 0.02}}\n"
    some = "".join(line.format(i % 90) for i in range(1000)).encode()
    return some * (size // len(some) + 1)


TWO_MIB = 2 << 20
OTHERWISE_BEHIND_STEPS = {
    "handled-exception": ("fault", "after steps, a log that goes on without any tells of work that stopped"),
    "unnamed-complaint": ("healthy", "a mere complaint counts in a log without any step only"),
    "all GPUs on the bus": ("healthy", "nothing in it is recognised, but the steps are"),
    "data-preparation": ("healthy", "nothing in it is recognised, but the steps are"),
    "a driver that no rule knows": ("healthy", "a driver's words count only where no job stands beside them"),
}
"""Logs that honestly say something else where steps stand before them: the verdict, and why."""


def explain(*paths):
    """What Holdfast says of these files or folders."""
    return explain_logs(paths, matcher=MATCHER, now=1740830000.0)


def explain_piped(data):
    """What Holdfast says of these bytes on standard input."""
    with mock.patch.object(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data))):
        return explain("-")


def assert_right(log, tmp_path, label=""):
    """The explanation of this log is what its description says: as a file, piped, and piped behind 2 MiB of steps.

    `label` stands before every line of the log, and so before the steps.
    """
    path = tmp_path / "job.log"
    path.write_text(log.text)
    said = explain(path)
    shown = (said.verdict, said.cause, said.domain, said.suspects, said.story, [e.text[:80] for e in said.evidence])
    assert said.verdict == log.verdict, shown
    if log.cause:
        assert said.cause.startswith(log.cause), shown
    if log.domain:
        assert said.domain == log.domain, shown
    if log.ranks is not None:
        assert said.suspects.ranks == log.ranks, shown
    if log.nodes is not None:
        assert said.suspects.nodes == log.nodes, shown
    if log.helps != "any":
        assert said.restart_helps is log.helps, shown
    if said.verdict == "fault":
        assert said.evidence[0].role == "root"
        assert said.evidence[0].text in path.read_text().splitlines()[said.evidence[0].line - 1] or "\r" in log.text
    data = path.read_bytes()
    piped = explain_piped(data)
    assert answer(piped) == answer(said)
    assert [e.line for e in piped.evidence if e.rule != "novelty.line"] == [
        e.line for e in said.evidence if e.rule != "novelty.line"
    ]
    before = steps(TWO_MIB, label)
    assert_same_behind(log.name, said, explain_piped(before + data), before.count(b"\n"))


def answer(said):
    """What must be the same however a log is read; a file's name may add a node."""
    node = source_of(said.evidence[0].file).node if said.evidence else ""
    nodes = [name for name in said.suspects.nodes if name != node]
    gpus = [gpu.rpartition("/")[2] for gpu in said.suspects.gpus]
    return (said.verdict, said.cause, said.domain, nodes, said.suspects.ranks, gpus, said.restart_helps)


def assert_same_behind(name, said, behind, lines):
    """The explanation of a log behind so many lines of steps is the log's own."""
    otherwise = OTHERWISE_BEHIND_STEPS.get(name)
    if otherwise is not None:
        assert behind.verdict == otherwise[0] != said.verdict
        return
    assert answer(behind) == answer(said), (behind.story, said.story)
    if said.verdict == "fault":
        assert (behind.evidence[0].text, behind.evidence[0].line) == (
            said.evidence[0].text,
            said.evidence[0].line + lines,
        )
