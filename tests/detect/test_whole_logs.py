"""Whole logs in the public formats of the tools: verdict, root cause, domain and suspects are those a person would name.

The logs are written from the formats, with made-up names.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from holdfast.adapters.catalogue_files import read_catalogue
from holdfast.cli.explain import explain_logs
from holdfast.detect.matcher import Matcher

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

WHOLE = [
    # --- healthy ---
    Whole("megatron-running", NOISE + megatron(), "healthy"),
    Whole("titan-done", NOISE + titan() + DONE_TITAN, "healthy"),
    Whole("hf-bars", hf(100), "healthy"),
    Whole("hf-done", hf(40) + "{'train_runtime': 123.4, 'train_samples_per_second': 10.1, 'train_loss': 2.1, 'epoch': 1.0}\n", "healthy"),
    Whole("abort-after-the-end", titan() + DONE_TITAN + "[rank0]:terminate called without an active exception\n[rank0]:Fatal Python error: Aborted\n" + elastic(0, -6), "healthy"),
    Whole("survived-exception", megatron(20) + "ERROR:root:upload failed\n" + traceback(0, "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='x', port=443): Read timed out.", fmt="") + megatron(20, 21, minute=20), "healthy"),
    Whole("deepspeed-overflow", "[2024-09-11 17:52:18,030] [INFO] [loss_scaler.py:183:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 4294967296, reducing to 2147483648\n" * 3 + "[2024-09-11 17:53:18,030] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=3, lr=[1e-05], mom=[(0.9, 0.999)]\n", "healthy"),
    Whole("dmesg-boot", "[    0.000000] Linux version 5.15.0\n[Wed Mar  1 17:38:38 2023] pci 0000:64:00.0: BAR 6: failed to assign [mem size 0x00200000 pref]\n[  12.3] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.104.05\n[  13.0] EDAC MC0: Giving out device to module skx_edac\n[74785.660380] pcieport 0000:00:02.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, id=0010(Transmitter ID)\n[  15.0] mlx5_core 0000:3b:00.0 ens3f0np0: Link up\n", "healthy"),
    Whole("row-remap", "May 19 07:08:57 node-100 kernel: [680111.646286] NVRM: Xid (PCI:0000:10:1c): 63, pid=1850, Row Remapper: New row marked for remapping, reset gpu to activate\n" + megatron(), "healthy"),
    Whole("nccl-info", "node1:77:99 [0] NCCL INFO comm 0x55d rank 0 nranks 8 cudaDev 0 busId 1000 - Init COMPLETE\nnode1:77:99 [0] NCCL INFO comm 0x55d rank 0 - Abort COMPLETE\n" + megatron(10), "healthy"),
    Whole("spike", megatron(10) + "[2025-03-01 10:20:00] iteration       11/  500000 | consumed samples: 1 | elapsed time per iteration (ms): 10012.3 | lm loss: 5.098124E+00 | grad norm: 960.351 | number of nan iterations:   0 |\n" + megatron(10, 12, minute=21), "healthy"),
    Whole("lightning-done", "Epoch 0: 100%|##########| 100/100 [00:10<00:00,  9.9it/s, v_num=0, train_loss=2.3]\n`Trainer.fit` stopped: `max_epochs=1` reached.\n", "healthy"),
    Whole("jax-noise", "2026-04-17 13:11:11.004014: E external/local_xla/xla/stream_executor/cuda/cuda_platform.cc:51] failed call to cuInit: INTERNAL: CUDA error: Failed call to cuInit: UNKNOWN ERROR (303)\n" + "".join(f"completed step: {i}, seconds: 3.121, TFLOP/s/device: 180.1, Tokens/s/device: 2624.0, total_weights: 65536, loss: 9.871\n" for i in range(20)), "healthy"),
    Whole("prose", "INFO we handle segmentation fault recovery and CUDA out of memory errors gracefully: see docs/error.md\nINFO retrying failed downloads: 0 errors\n" + titan(5), "healthy"),
    Whole("empty", "", "healthy"),
    Whole("handled-exception", "starting\n" + traceback(0, "KeyError: 'x'", fmt="") + "".join(f"processed shard {i} of the set: 1000 documents, 3.2 MB\n" for i in range(120)), "healthy"),
    Whole("boot-of-a-node", "[   12.0] mlx5_core 0000:3b:00.1 ens3f1np1: Link down\n[   12.1] mlx5_core 0000:3b:00.1: Port module event: module 1, Cable unplugged\n[   13.0] mlx5_core 0000:3b:00.0 ens3f0np0: Link up\n[   14.0] mce: [Hardware Error]: CPU 0: Machine Check: 0 Bank 7: 8c00004000010090\n[  500.0] nfs: server 10.0.0.1 not responding, still trying\n[  510.0] nfs: server 10.0.0.1 OK\n", "healthy"),
    Whole("first-bar-without-loss", "Epoch 0:   0%|          | 0/100 [00:00<?, ?it/s, loss=nan, v_num=0]\n" + "".join(f"\rEpoch 0:  {i:2d}%|##        | {i}/100 [00:{i:02d}<01:00,  1.00it/s, loss=2.1, v_num=0]" for i in range(1, 40)) + "\n", "healthy"),
    # --- application ---
    Whole("key-error", NOISE + titan() + traceback(3, "KeyError: 'ids'") + traceback(1, GLOO) + traceback(0, GLOO) + closing() + elastic(3, 1), "fault", ("python.", "data."), "application", (3,)),
    Whole("fan-out", megatron(3) + "".join(traceback(r, "ValueError: expected sequence of length 12 at dim 1 (got 7)") for r in range(8)) + elastic(0, 1), "fault", ("python.", "data."), "application"),
    Whole("import", "Traceback (most recent call last):\n  File \"/home/mei/train.py\", line 3, in <module>\n    import apex\nModuleNotFoundError: No module named 'apex'\n", "fault", ("python.import",), "application", helps=False),
    Whole("usage", "usage: train.py [-h] [--lr LR]\ntrain.py: error: unrecognized arguments: --micro-batch 4\nsrun: error: node07: task 0: Exited with exit code 2\n", "fault", ("python.usage",), "application", helps=False),
    Whole("segfault-torchrun", titan() + "W0301 10:30:00.000000 100 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 2 closing signal SIGTERM\nE0301 10:30:00.100000 100 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -11) local_rank: 5 (pid: 2630) of binary: /opt/env/bin/python\n" + elastic(5, -11, trace="Signal 11 (SIGSEGV) received by PID 2630"), "fault", ("torch.elastic.failed.segfault", "process.segfault", "torch.elastic.root"), "application", (5,)),
    Whole("artificial-segfault", megatron(10) + "Rank0: (1) segmentation fault: artificial segfault\nsrun: error: node07: task 0: Exited with exit code 1\n", "fault", ("process.segfault",), "application"),
    Whole("cuda-oom", titan(3) + traceback(2, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 2 has a total capacity of 79.11 GiB of which 1.06 GiB is free.") + elastic(2, 1), "fault", ("torch.cuda.oom",), "application", (2,), helps=False),
    Whole("host-oom", "".join(f"{r}: " + line + "\n" for r, line in [(0, megatron(2).splitlines()[0])]) + "48: Killed\nsrun: error: node12: task 48: Killed\nsrun: Job step aborted: Waiting up to 32 seconds for job step to finish.\nslurmstepd: error: *** STEP 77.0 ON node01 CANCELLED AT 2025-03-01T10:40:00 ***\nslurmstepd: error: Detected 1 oom-kill event(s) in StepId=77.0. Some of your processes may have been killed by the cgroup out-of-memory handler.\n", "fault", ("oom.slurm",), "application"),
    Whole("shm", traceback(0, "RuntimeError: DataLoader worker (pid 30882) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.", fmt="") , "fault", ("torch.dataloader.bus",)),
    Whole("device-assert", titan(3) + "../aten/src/ATen/native/cuda/Indexing.cu:1292: indexSelectLargeIndex: block: [5,0,0], thread: [32,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n" * 20 + traceback(1, "RuntimeError: CUDA error: device-side assert triggered") + elastic(1, 1), "fault", ("cuda.assert",), "application"),
    Whole("nan", titan(10) + "[rank0]:[titan] 2025-03-01 10:30:00,051 - root - INFO - step: 11  loss: nan  grad_norm: nan  memory:  9.46GiB(64.99%)  tps: 7,094  tflops: 0.51  mfu: 0.16%\n" * 5, "fault", ("loss.",), "application"),
    Whole("nan-megatron", megatron(10) + traceback(3, "AssertionError: rank 3: found NaN in local forward loss calculation. Device: 3, node: node07", fmt="3: ") + "srun: error: node07: task 3: Exited with exit code 1\nsrun: Job step aborted: Waiting up to 62 seconds for job step to finish.\n", "fault", ("megatron.nan", "loss."), "application", (3,)),
    Whole("disk-full", megatron(10) + "saving checkpoint at iteration   10 to /ckpt\n" + traceback(0, "OSError: [Errno 28] No space left on device: '/ckpt/iter_10/x.pt'", fmt="0: ") + "srun: error: node01: task 0: Exited with exit code 1\n", "fault", ("disk.full",), "storage"),
    Whole("corrupt-checkpoint", "loading checkpoint from /ckpt at iteration 100\n" + "".join(traceback(r, "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory") for r in range(4)), "fault", ("data.checkpoint.damaged",), "storage"),
    Whole("config", "".join(traceback(r, "AssertionError: num_attention_heads (30) must be divisible by tensor parallel size (4)", fmt="{r}: ") for r in range(4)), "fault", ("data.config", "python.", "data."), "application"),
    Whole("port", traceback(0, "OSError: [Errno 98] Address already in use", fmt=""), "fault", ("socket.in_use",)),
    Whole("shapes", titan(2) + traceback(0, "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x8 and 16x4)", fmt=""), "fault", ("data.shape",), "application"),
    Whole("accelerate", titan(3) + traceback(0, "ValueError: bad mask", fmt="") + "Traceback (most recent call last):\n  File \"/opt/env/bin/accelerate\", line 8, in <module>\n    sys.exit(main())\nsubprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 1.\n", "fault", ("python.exception",), "application"),
    Whole("rich-traceback", titan(3) + "╭──── Traceback (most recent call last) ────╮\n│ /home/mei/train.py:10 in main             │\n│ ❱ 10     step()                           │\n╰───────────────────────────────────────────╯\nRuntimeError: The size of tensor a (4) must match the size of tensor b (5) at non-singleton dimension 1\n", "fault", ("data.shape",), "application"),
    Whole("spawned", titan(2) + "torch.multiprocessing.spawn.ProcessExitedException: process 3 terminated with signal SIGSEGV\n", "fault", ("python.spawned.signal",), "application", (3,)),
    Whole("ctrl-c", titan(4) + traceback(0, "KeyboardInterrupt", fmt=""), "fault", ("python.interrupt",), "operator"),
    Whole("cancelled", megatron(6) + "slurmstepd: error: *** JOB 77 ON node1 CANCELLED AT 2025-03-01T10:01:30 DUE to SIGNAL Terminated ***\n", "fault", ("slurm.cancelled",), "operator"),
    # --- hardware ---
    Whole("ecc", titan(5) + traceback(6, "RuntimeError: CUDA error: uncorrectable ECC error encountered") + "".join(traceback(r, "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1333, remote process exited or there was a network error, NCCL version 2.19.3") for r in (0, 1, 2)) + elastic(0, 1), "fault", ("cuda.ecc",), "hardware", (6,)),
    Whole("xid79-syslog", megatron(10) + "Mar  1 10:15:00 node07 kernel: [680111.646286] NVRM: Xid (PCI:0000:b9:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\nMar  1 10:15:00 node07 kernel: [680111.7] NVRM: Xid (PCI:0000:b9:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)\n" + watchdog(0, stamp="E301 10:25:30.123456789") + ended_by_abort(0), "fault", ("nvidia.xid.79",), "hardware", nodes=("node07",)),
    Whole("xid74-dmesg", "[680111.646286] NVRM: Xid (PCI:0000:b9:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 6(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)\n[680112.1] NVRM: Xid (PCI:0000:b9:00): 45, pid=99, name=python, Ch 00000001\n", "fault", ("nvidia.xid.74",), "hardware", helps=True),
    Whole("three-lines", "[  100.1] NVRM: The NVIDIA GPU 0000:18:00.0\n[  100.1] NVRM: (PCI ID: 10de:2901) installed in this system has\n[  100.1] NVRM: fallen off the bus and is not responding to commands.\n", "fault", ("nvidia.gpu.gone",), "hardware"),
    Whole("three-lines-journal", "Feb 14 05:03:41 gpu-1 kernel: NVRM: The NVIDIA GPU 0000:b3:00.0\n               NVRM: (PCI ID: 10de:26b5) installed in this system has\n               NVRM: fallen off the bus and is not responding to commands.\nFeb 14 05:03:42 gpu-1 kernel: NVRM: The NVIDIA probe routine failed for 1 device(s).\n", "fault", ("nvidia.gpu.gone",), "hardware"),
    Whole("nvlink-peer", "171: [rank171]: [E] Process group watchdog thread terminated with exception: CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error\n171: terminate called after throwing an instance of 'c10::DistBackendError'\n171: Fatal Python error: Aborted\n4717: [rank4717]: TCPStore recvValue failed: Failed to recv, got 0 bytes. Connection was likely closed.\n72: Failed to check should dump on TCPStore: Broken pipe\n", "fault", ("cuda.nvlink",), "hardware", (171,)),
    Whole("node-failure", megatron(10, prefix="0: ") + "srun: error: Node failure on node37\nsrun: Job step aborted: Waiting up to 62 seconds for job step to finish.\nslurmstepd: error: *** STEP 1943824.0 ON node17 CANCELLED AT 2025-03-01T10:17:25 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***\n", "fault", ("slurm.node_failure",), "hardware", nodes=("node37",)),
    # --- network, hangs ---
    Whole("port-error-600s", megatron(10, prefix="0: ") + "1000: [2025-03-01 10:15:56] nvl72-T11:393849:395082 [0] transport/net_ib.cc:253 NCCL WARN NET/IB : mlx5_3:1 Got non-fatal async event: port error(10)\n" + "".join(f"{r}: " + w + "\n" for r in (5995, 12) for w in watchdog(r, stamp="E301 10:25:57.436").splitlines()), "fault", ("nccl.ib.port",), "network"),
    Whole("timeout-alone", megatron(10) + "".join(watchdog(r) for r in range(8) if r != 5) + elastic(0, -6), "fault", ("nccl.timeout",), "unknown", (5,)),
    Whole("timeout-lagging", megatron(10) + "".join(watchdog(r, seq=70 if r == 3 else 77) for r in range(8)) + elastic(0, -6), "fault", ("nccl.timeout",), "unknown", (3,)),
    Whole("exception-then-timeout", titan(10) + "2025-03-01 10:30:00,000 - root - ERROR - data thread died\n" + traceback(4, "ValueError: bad shard header") + "".join(watchdog(r) for r in range(8) if r != 4) + elastic(0, -6), "fault", ("python.", "data."), "application", (4,)),
    Whole("ib-retry", "node5:100:120 [0] transport/net_ib.cc:96 NCCL WARN NET/IB : Got completion from peer 10.1.2.3<39936> with error 12, opcode 0, len 0, vendor err 129\n[rank3]: torch.distributed.DistBackendError: NCCL error in: x.cpp:1333, remote process exited or there was a network error, NCCL version 2.19.3\n", "fault", ("nccl.ib.completion",), "network"),
    Whole("init-connect", "[rank508]: socketPollConnect: connect to 10.2.2.1<42307> returned Connection timed out, exceeded error retry count after 35 attempts\n[rank391] NCCL error: remote process exited or there was a network error, NCCL version 2.28.9\n", "fault", ("nccl.connect",), "network", (508,)),
    Whole("rendezvous", "torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 3/4 clients joined.\n", "fault", ("torch.rendezvous.waiting",)),
    # --- platform, operator ---
    Whole("time-limit", megatron(30) + "slurmstepd: error: *** JOB 77 ON node01 CANCELLED AT 2025-03-01T10:05:10 DUE TO TIME LIMIT ***\n", "fault", ("slurm.time_limit",), "operator"),
    Whole("preempted", megatron(5) + "slurmstepd: error: *** JOB 77 ON node1 CANCELLED AT 2025-03-01T10:01:10 DUE TO PREEMPTION ***\n", "fault", ("slurm.preempted",), "operator", helps=True),
    Whole("kill9", titan() + "E0301 10:30:00.100000 100 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -9) local_rank: 2 (pid: 2630) of binary: /opt/env/bin/python\n" + elastic(2, -9, trace="Signal 9 (SIGKILL) received by PID 2630"), "fault", ("torch.elastic.failed.killed", "process.killed", "exit.signal.9"), "", (2,)),
    Whole("k8s-oom", "State: Terminated\n  Reason:       OOMKilled\n  Exit Code:    137\nWarning  BackOff  kubelet  Back-off restarting failed container trainer in pod x\n", "fault", ("oom.kubernetes",), "application"),
    Whole("nfs-stale", titan(5) + traceback(2, "OSError: [Errno 116] Stale file handle: '/data/text/x.bin'"), "fault", ("fs.stale",), "storage", (2,)),
    Whole("deepspeed-9", "[2024-05-01 10:00:00,000] [INFO] [launch.py:315:sigkill_handler] Killing subprocess 4711\n[2024-05-01 10:00:00,000] [ERROR] [launch.py:321:sigkill_handler] ['/usr/bin/python', 'train.py'] exits with return code = -9\n", "fault", ("deepspeed.exit.signal",)),
    Whole("restarted-and-done", titan(10) + traceback(3, "KeyError: 'ids'") + elastic(3, 1) + "INFO:torch.distributed.elastic.agent.server.api:[default] Worker group FAILED. 3/3 attempts left; will restart worker group\n" + titan(20, 6, minute=10) + DONE_TITAN, "healthy"),
    Whole("restarted-and-failed-otherwise", titan(10) + traceback(3, "KeyError: 'ids'") + "[default] Worker group FAILED. 3/3 attempts left; will restart worker group\n" + titan(20, 6, minute=10) + traceback(2, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."), "fault", ("torch.cuda.oom",), "application", (2,)),
    Whole("jax-task", "completed step: 10, seconds: 3.1, TFLOP/s/device: 180.1, loss: 9.8\nE0501 10:00:00.000000 99 coordination_service_agent.cc:1] Polled an error from coordination service (this can be an error from this or another task).\njaxlib.xla_extension.XlaRuntimeError: UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):\n/job:jax_worker/replica:0/task:3\nF0501 client.h:77] Terminating process because the JAX distributed service detected fatal errors.\n", "fault", ("jax.task_lost",), "network", (3,)),
    Whole("mpi", "step 10 loss 2.0\n[node07:01234] *** Process received signal ***\n[node07:01234] Signal: Segmentation fault (11)\nPrimary job  terminated normally, but 1 process returned\nmpirun noticed that process rank 3 with PID 0 on node node07 exited on signal 11 (Segmentation fault).\n", "fault", ("process.segfault", "mpi.exited"), "application", (3,), ("node07",)),
    Whole("lustre", megatron(10) + "Mar  1 10:01:50 node07 kernel: LustreError: 167-0: scratch-OST0001-osc-ffff: This client was evicted by scratch-OST0001; in progress operations using this service will fail.\n" + traceback(0, "OSError: [Errno 5] Input/output error: '/scratch/x'", fmt="0: "), "fault", ("kernel.lustre", "fs.io"), "storage"),
    Whole("slurmctld", "[2024-05-01T10:00:00.000] error: Nodes node07 not responding\n[2024-05-01T10:05:00.000] error: Nodes node07 not responding, setting DOWN\n[2024-05-01T10:05:00.100] Killing JobId=77 on failed node node07\n", "fault", ("slurm.node_down",), "hardware", None, ("node07",)),
    Whole("xid31", "[100.1] NVRM: Xid (PCI:0000:b9:00): 31, pid=2079991, name=pt_main_thread, Ch 00000007, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_6 faulted @ 0x7f5a_e7504000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ\n[100.2] NVRM: Xid (PCI:0000:b9:00): 43, pid=2079991, name=pt_main_thread, Ch 00000007\n", "fault", ("nvidia.xid.31",), "application"),
    Whole("efa", "NCCL WARN NET/OFI Request 0x7f completed with error. RC: 5. Error: 12 (Unresponsive remote) EFA\n" + traceback(0, "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.19.3"), "fault", ("ofi.completion",), "network"),
    Whole("hung-before-the-limit", megatron(30) + "slurmstepd: error: *** JOB 77 ON node01 CANCELLED AT 2025-03-01T13:00:00 DUE TO TIME LIMIT ***\n", "fault", ("hang.silence",), "unknown"),
    Whole("hung-then-cancelled", titan(30) + "slurmstepd: error: *** JOB 77 ON node01 CANCELLED AT 2025-03-01T12:00:00 ***\n", "fault", ("hang.silence",), "unknown"),
    # --- learned from logs of other origin, told again with other words ---
    Whole("pdsh-and-rank", traceback(1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.10 GiB", fmt="node05: [rank{r}]: ") + traceback(0, GLOO, fmt="node04: [rank{r}]: "), "fault", ("torch.cuda.oom",), "application", (1,)),
    Whole("rendezvous-timeout", "[E socket.cpp:860] [c10d] The client socket has timed out after 60s while trying to connect to 10.0.0.1:29500\ntorch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed.\n", "fault", ("torch.rendezvous.timeout",), "network"),
    Whole("rendezvous-chained", traceback(0, "RuntimeError: connect() timed out. Original timeout was 60000 ms.", fmt="") + "\nThe above exception was the direct cause of the following exception:\n\n" + traceback(0, "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed.", fmt=""), "fault", ("torch.rendezvous.timeout",), "network"),
    Whole("message-goes-on", megatron(5) + traceback(0, "RuntimeError: TensorPool pool.h 168", fmt="") + "cuda failed with error 2 out of memory. use CUDA_LAUNCH_BLOCKING=1 to get correct traceback.\n", "fault", ("torch.cuda.oom",), "application"),
    Whole("chained-worker", traceback(0, "_queue.Empty", fmt="") + "\nDuring handling of the above exception, another exception occurred:\n\n" + traceback(0, "RuntimeError: DataLoader worker (pid(s) 77) exited unexpectedly", fmt=""), "fault", ("torch.dataloader.killed",)),
    Whole("writer-failed", titan(5) + traceback(0, "RuntimeError: [enforce fail at inline_container.cc:778] . PytorchStreamWriter failed writing file data.pkl: file write failed") + traceback(0, "RuntimeError: [enforce fail at inline_container.cc:337] . unexpected pos 21 vs 20"), "fault", ("fs.write",), "storage"),
    Whole("io-error", titan(5) + traceback(0, "RuntimeError: write(): fd 29 failed with Input/output error"), "fault", ("fs.io",), "storage"),
    Whole("gradients-lost", megatron(10) + "".join(f"[2025-03-01 10:{10 + i:02d}:00] iteration {11 + i:8d}/  500000 | consumed samples: 1 | elapsed time per iteration (ms): 10012.3 | loss scale: 1.0 | grad norm: nan | number of nan iterations:   0 |\n" for i in range(12)), "fault", ("loss.nan.grad",), "application"),
    Whole("gradient-once", "".join(f"{{'loss': 1.2, 'grad_norm': {'nan' if i == 29 else 0.9}, 'learning_rate': 1e-05, 'epoch': 0.{i:02d}}}\n" for i in range(1, 30)), "healthy"),
    Whole("libfabric-init", "ip-10-0-0-1:79:150 [0] nccl_net_ofi_domain_get_ep:969 NCCL WARN NET/OFI Creating new endpoint for domain 0x7f failed: Invalid argument\n" + traceback(0, "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2251, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5"), "fault", ("ofi.failed",), "network"),
    Whole("neuron-load", traceback(0, "RuntimeError: INTERNAL: From /job:c_localservice/replica:0/task:0:", fmt="") + '2 root error(s) found.\n  (0) INTERNAL: Nrt::Load failed on NeuronCores 0-0(2): nrt_load status=1, error message="Non specific failure".\n', "fault", ("neuron.runtime",)),
    Whole("jax-unavailable", "jax.errors.JaxRuntimeError: UNAVAILABLE: failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:13305: Failed to connect to remote host: Connection refused\n", "fault", ("jax.task_lost",), "network"),
    Whole("exit-137", "[I 10:11:21.112] kernel started\ncommand terminated with exit code 137\n", "fault", ("process.killed",)),
    Whole("ray-worker", "(WorkerDict pid=77) step:41 - actor/loss:0.012\nray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\nThe actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2.\n", "fault", ("process.killed.ray",)),
    Whole("ray-memory", "(raylet) 3 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed due to other reasons at node (ID: 1, IP: 10.0.0.1) over the last time period.\n", "fault", ("oom.ray",), "application"),
    Whole("horovod-stall", "step 7 loss 2.0\n[2025-03-01 04:51:42.894382: W horovod/common/stall_inspector.cc:105] One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting for remainder of ranks for more than 60 seconds.\nStalled ranks:\n2: [x]\n", "fault", ("horovod.stalled",), "unknown"),
    Whole("container-start", "pyxis: importing docker image ...\nslurmstepd: error: pyxis: couldn't start container\nslurmstepd: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1\nsrun: error: node07: task 1: Exited with exit code 1\n", "fault", ("slurm.launch_failed",), "platform"),
    Whole("heap", titan(5) + "double free or corruption (!prev)\nE0301 10:30:00.100000 100 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -6) local_rank: 0 (pid: 2219) of binary: /opt/env/bin/python\n", "fault", ("process.heap",), "application"),
    Whole("timeout-after-the-end", "{'train_runtime': 112.1, 'train_samples_per_second': 3.1, 'train_loss': 0.61, 'epoch': 1.0}\n" + watchdog(1), "fault", ("nccl.timeout",)),
    Whole("thread-ended", "epoch 5 of the night begins\nException in thread Thread-5:\n" + traceback(0, "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='x', port=443): Read timed out.", fmt="") + "".join(f"wave {i}: 1024/1024 in 10m 5s, ll = -0.127\n" for i in range(12)), "healthy"),
    Whole("thread-ended-all", "epoch 5 of the night begins\nException in thread Thread-5:\n" + traceback(0, "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='x', port=443): Read timed out.", fmt=""), "fault", ("net.remote_service",)),
    # --- around the program: shells, ssh, containers, builds, other schedulers ---
    Whole("no-such-command", "starting\nbash: line 1: torchrun: command not found\n", "fault", ("launching.command",), "application"),
    Whole("no-such-module", "bash: module: command not found\nmkdir: cannot create directory '/out': File exists\n" + titan(5), "healthy"),
    Whole("ssh-refused", "pdsh@node01: node02: ssh exited with exit code 255\nnode02: ssh: connect to host node02 port 22: Connection refused\n", "fault", ("launching.ssh",), "network"),
    Whole("container-refused", 'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].\n', "fault", ("launching.container",), "platform"),
    Whole("extension", traceback(0, "subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.", fmt="") + "\nThe above exception was the direct cause of the following exception:\n\n" + traceback(0, "RuntimeError: Error building extension 'fused_adam'", fmt=""), "fault", ("launching.build",), "application"),
    Whole("compiled-graph", titan(2) + "[rank0]: torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\n[rank0]: CalledProcessError: Command '['gcc']' returned non-zero exit status 1.\n", "fault", ("launching.build",), "application"),
    Whole("walltime", "step 10 loss 2.0\n=>> PBS: job killed: walltime 3602 exceeded limit 3600\n", "fault", ("launching.time_limit",), "operator"),
    Whole("check-failed", "2025-03-01 10:00:00 step 10 loss 2.0\nF0301 10:00:01.112231    12 pool.cc:88] Check failed: status == kOk (2 vs. 0)\n", "fault", ("process.check",), "application"),
    Whole("store-barrier", traceback(3, "RuntimeError: Timed out initializing process group in store based barrier on rank: 3, for key: store_based_barrier_key:1 (world_size=8, worker_count=7, timeout=0:30:00)"), "fault", ("torch.rendezvous.timeout",), "network"),
    Whole("mount-gone", titan(5) + traceback(0, "OSError: [Errno 107] Transport endpoint is not connected: '/mnt/ckpt/step_410'"), "fault", ("fs.stale",), "storage"),
    Whole("only-xid-45", "kernel: NVRM: Xid (PCI:0000:dc:00): 45, pid=77, name=python3, Ch 00000001 caused by previous Xid 149\n", "fault", ("nvidia.xid.149",), "hardware"),
    Whole("limit-after-the-end", titan(5) + "[after training is done] datetime: 2025-03-01 10:45:03\nslurmstepd: error: *** STEP 77.2 ON node01 CANCELLED AT 2025-03-01T10:53:02 DUE TO TIME LIMIT ***\n", "fault", ("slurm.time_limit",), "operator"),
    Whole("hydra-only", "[2025-03-01 05:07:02,550][__main__][INFO] - Epoch: [7]  [ 600/2916]  eta: 0:54:53  loss: 1.2\n[2025-03-01 05:07:11,062][__main__][ERROR] - Error executing job with overrides: ['machine=hpc']\n", "fault", ("process.exited.hydra",), "application"),
    # --- errors that no rule names ---
    Whole("unnamed-error", "2025-03-01 10:00:00,123 - trainer - INFO - reading the shard map\n2025-03-01 10:00:01,123 - trainer - ERROR - the shard map is of another run\n", "fault", ("generic.error",), "application"),
    Whole("unnamed-fatal", titan(5) + "FATAL: the arena of the index is exhausted\n" + "bye\n" * 5, "fault", ("generic.fatal",), "application"),
    Whole("unnamed-storage", 'level=error msg="cannot mount bucket of the corpus"\n', "fault", ("generic.error",), "storage"),
    Whole("unnamed-exit", "preparing\nProcess finished with exit code 3\n", "fault", ("generic.exit",), "application"),
    Whole("unnamed-before-exit", "Error: the mixture names no corpus\nsrun: error: node07: task 0: Exited with exit code 1\n", "fault", ("generic.error",), "application"),
    Whole("unnamed-complaint", "reading the corpus\ncould not lease a slot of the cache\n", "unknown"),
    Whole("cut-traceback", titan(3) + traceback(0, "X").rpartition("[rank0]: X")[0], "fault", ("generic.traceback",), "application"),
    Whole("wrong-arguments", "usage: launch <command>\nLaunch tool: error: unrecognized arguments: --tp\n", "fault", ("python.usage",), "application", helps=False),
    Whole("only-cuda-in-nccl", "[rank7]: ncclUnhandledCudaError: Call to CUDA function failed.\n", "fault", ("nccl.cuda",)),
    Whole("never-scheduled", "Warning  FailedScheduling  1m (x37 over 10m)  default-scheduler  0/1 nodes are available: 1 Insufficient nvidia.com/gpu.\n", "fault", ("k8s.scheduling",), "platform"),
    Whole("gpu-hang", "step 3 loss 2.0\nHW Exception by GPU node-4 (Agent handle: 0x1ebc04e0) reason :GPU Hang\nFatal Python error: Aborted\n", "fault", ("hip.hang",), "hardware"),
    # --- they are no trouble where the log went on or ended in order ---
    Whole("error-then-steps", "ERROR:root:the dashboard is away\n" + titan(5), "healthy"),
    Whole("error-then-done", titan(5) + "2025-03-01 10:49:00,1 - up - ERROR - the dashboard is away\n" + DONE_TITAN, "healthy"),
    Whole("error-after-done", titan(5) + DONE_TITAN + "ERROR:root:the dashboard is away\n", "healthy"),
    Whole("error-long-ago", "ERROR: the cache is of another run and is made anew\n" + "".join(f"INFO corpus part {i} of 80 is read\n" for i in range(80)), "healthy"),
    Whole("error-words", titan(3) + "val error: 0.013\nreconstruction error = 0.2\n0 errors\nignore_errors=True\nINFO ERROR lines are counted\n", "healthy"),
    Whole("kernel-boot-errors", "[    2.1] ACPI Error: No handler for Region [SYSI] (20220331/evregion-130)\n[    3.2] foo: probe of 0000:00:1f.5 failed with error -22\nMar  1 10:00:00 n1 systemd[1]: Failed to start Crash recovery kernel arming.\n", "healthy"),
    Whole("scheduled-at-last", "Warning  FailedScheduling  9m  default-scheduler  0/1 nodes are available: 1 Insufficient nvidia.com/gpu.\nNormal  Scheduled  1m  default-scheduler  Successfully assigned train/worker-0 to node07\nNormal  Started  1m  kubelet  Started container train\n", "healthy"),
    # --- thin ---
    Whole("accelerate-killed", "loading\nsubprocess.CalledProcessError: Command '['/opt/bin/python', 'train.py', '--rank', '16']' died with <Signals.SIGKILL: 9>.\n", "fault", ("process.killed",)),
    Whole("triton-memory", megatron(5) + 'Traceback (most recent call last):\n  File "/w/t.py", line 1, in <module>\n    f()\nRuntimeError: Triton Error [CUDA]: out of memory\n', "fault", ("torch.cuda.oom",), "application"),
    Whole("pool-suspended", "Mar  1 10:00:00 node07 kernel: WARNING: Pool 'scratch' has encountered an uncorrectable I/O failure and has been suspended.\n", "fault", ("kernel.disk",), "storage"),
    Whole("labelled-table", "stderr: torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\nstderr: Root Cause (first observed failure):\nstderr: [0]:\nstderr:   time      : 2025-03-01_10:00:00\nstderr:   host      : node01\nstderr:   rank      : 3 (local_rank: 3)\nstderr:   exitcode  : 1 (pid: 77)\nstderr:   error_file: <N/A>\nstderr:   traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html\nstderr: ============================================================\n", "fault", ("exit.code.1",)),
    Whole("no-ipv6", "[W1226 15:35:11.626067741 socket.cpp:752] [c10d] The client socket cannot be initialized to connect to [node5.site.org]:8000 (errno: 97 - Address family not supported by protocol).\n", "healthy"),
    Whole("only-cascade", titan(5) + traceback(0, GLOO) + traceback(1, GLOO), "unknown"),
]  # fmt: skip


@pytest.mark.parametrize("log", WHOLE, ids=lambda log: log.name)
def test_whole_log(log, tmp_path):
    """The explanation of this log is right."""
    path = tmp_path / "job.log"
    path.write_text(log.text)
    said = explain_logs([path], matcher=MATCHER, now=1740830000.0)
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
