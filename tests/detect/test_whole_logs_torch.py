"""Whole logs of large runs on PyTorch: launchers, requeues, swap files, streamed data, Ascend's collectives."""

from __future__ import annotations

import pytest
from tests.whole_logs import Whole, assert_right, megatron, traceback

SUBMITIT = "submitit INFO (2025-03-01 09:59:00,762) - Starting with JobEnvironment(job_id=4711, hostname=node07, local_rank=0(2), node=0(1), global_rank=0(2))\n"
TRACKER = "/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: '/shard_{n}': [Errno 2] No such file or directory: '/shard_{n}'\n  warnings.warn('resource_tracker: %r: %s' % (name, e))\n"
AIO = "python: /opt/env/lib/python3.11/site-packages/deepspeed/ops/csrc/aio/py_lib/deepspeed_py_aio_handle.cpp:228: int deepspeed_aio_handle_t::pread(const at::Tensor&, const char*, bool, bool): Assertion `static_cast<long long int>(buffer.nbytes()) == num_file_bytes' failed.\n"

WHOLE = [
    Whole("requeued", SUBMITIT + megatron(5) + "submitit WARNING (2025-03-01 10:06:11,453) - Caught signal SIGUSR2 on node07: this job is preempted.\nslurmstepd: error: *** JOB 4711 ON node07 CANCELLED AT 2025-03-01T10:06:12 DUE TO JOB REQUEUE ***\nslurmstepd: error: *** STEP 4711.0 ON node07 CANCELLED AT 2025-03-01T10:06:12 DUE TO JOB REQUEUE ***\nsubmitit WARNING (2025-03-01 10:06:12,301) - Bypassing signal SIGTERM\nslurmstepd: error: Failed to send MESSAGE_TASK_EXIT: Connection refused\nsrun: error: node07: tasks 2-3: Exited with exit code 1\n", "fault", ("slurm.requeued",), "operator"),
    Whole("requeued-and-resumed", SUBMITIT + megatron(5) + "submitit WARNING (2025-03-01 10:06:11,453) - Caught signal SIGUSR2 on node07: this job is preempted.\nsubmitit INFO (2025-03-01 10:06:11,912) - Requeued job 4711 (3 remaining timeouts)\nslurmstepd: error: *** JOB 4711 ON node07 CANCELLED AT 2025-03-01T10:06:12 DUE TO JOB REQUEUE ***\n" + SUBMITIT + megatron(9, 6, minute=20), "healthy"),
    Whole("tracker-after-an-exit", megatron(4) + "ERROR:composer.cli.launcher:Rank 1 crashed with exit code 1.\nWaiting up to 30 seconds for all training processes to terminate. Press Ctrl-C to exit immediately.\n" + "".join(TRACKER.format(n=n) for n in range(4)), "fault", ("composer.exited",), "application", ranks=(1,)),
    Whole("tracker-after-a-good-end", megatron(9) + "training finished\n" + TRACKER.format(n=1), "healthy"),
    Whole("composer-names-the-reason", traceback(1, "KeyError: 'input_ids'") + "ERROR:composer.cli.launcher:Rank 1 crashed with exit code 1.\n" + TRACKER.format(n=1), "fault", ("data.", "python."), "application", ranks=(1,)),
    Whole("colossalai-launcher-alone", "Error: failed to run torchrun --nproc_per_node=4 --nnodes=1 --node_rank=0 train.py --config config.py -s on node07\n", "unknown"),
    Whole("nvme-swap", megatron(4) + AIO + "/nvme/zero_stage_3/optimizer/rank2/1399.tensor.swp: buffer nbytes != file bytes 4001366016 != 3599761408\n" + AIO + "[2025-03-01 10:09:00,100] [ERROR] [launch.py:321:sigkill_handler] ['/opt/bin/python', 'train.py'] exits with return code = -6\n", "fault", ("data.swap",), "storage"),
    Whole("streamed-index", traceback(0, "RuntimeError: Failed to download s3://corpus/c4/train/index.json -> /tmp/c4/train/index.json. Got errors:") + "ERROR:composer.cli.launcher:Rank 0 crashed with exit code 1.\n", "fault", ("data.streaming",), "storage", ranks=(0,)),
    Whole("ascend-device-held", traceback(3, "RuntimeError: [ERROR] HCCL error in: torch_npu/csrc/distributed/ProcessGroupHCCL.cpp:64") + "[ERROR] 2025-03-01-10:00:54 (PID:927000, Device:3, RankID:3) ERR02200 DIST call hccl api failed.\nEJ0001: 2025-03-01-10:00:54.167.645 Failed to initialize the HCCP process. Reason: Maybe the last training process is running.\n        Solution: Wait for 10s after killing the last training process and try again.\n", "fault", ("hccl.held",), "platform"),
    Whole("duplicate-gpu", traceback(1, "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:93, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.28.9\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device ac000"), "fault", ("torch.duplicate_gpu",), "application"),
    Whole("invalid-usage-alone", traceback(1, "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:93, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.28.9\nncclInvalidUsage: This usually reflects invalid usage of NCCL library."), "fault", ("nccl.invalid",), "application"),
    Whole("no-peer-access", "(pid=909597) RuntimeError: NCCL error in: /opt/pytorch/torch/lib/c10d/ProcessGroupNCCL.cpp:784, unhandled cuda error, NCCL version 2.7.8\n(pid=909608) node07:909608:910337 [0] NCCL INFO Channel 00 : 0[2d000] -> 1[2e000] via P2P/IPC\n(pid=909608) \n(pid=909608) node07:909608:910337 [0] transport/p2p.cc:238 NCCL WARN failed to open CUDA IPC handle : 217 peer access is not supported between these two devices\n(pid=909608) node07:909608:910337 [0] NCCL INFO transport.cc:68 -> 1\n", "fault", ("cuda.peer",), "platform"),
    Whole("mismatched-collective", "node07:88:91 [0] init.cc:1247 NCCL WARN Mismatched collective detected, please check your collective calls at and around rank 39. You can use NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=COLL to see the collective logs\n", "fault", ("torch.collective.mismatch",), "application", ranks=(39,)),
    Whole("spawned-and-killed", 'Traceback (most recent call last):\n  File "/w/train.py", line 51, in main\n    join=True,\n  File "/opt/env/lib/python3.11/site-packages/torch/multiprocessing/spawn.py", line 146, in join\n    signal_name=name\ntorch.multiprocessing.spawn.ProcessExitedException: process 3 terminated with signal SIGKILL\n', "fault", ("python.spawned.killed",), "unknown", ranks=(3,)),
    Whole("time-limit-before-untimed-lines", megatron(5) + "slurmstepd: error: *** JOB 4711 ON node07 CANCELLED AT 2025-03-01T10:06:12 DUE TO TIME LIMIT ***\nslurmstepd: error: *** STEP 4711.0 ON node07 CANCELLED AT 2025-03-01T10:06:12 DUE TO TIME LIMIT ***\nsrun: error: node07: tasks 2-3: Exited with exit code 1\n", "fault", ("slurm.time_limit",), "operator"),
    Whole("task-failed-long-before-the-teardown", megatron(5) + "[2025-03-01 10:00:52] saving\nsrun: error: node07: task 3: Exited with exit code 1\nsrun: Terminating StepId=4711.0\nslurmstepd: error: *** STEP 4711.0 ON node01 CANCELLED AT 2025-03-01T10:00:59 ***\n", "fault", ("slurm.task.exited",), "application", ranks=(3,)),
    Whole("rerun-machine", megatron(3) + "ERROR:megatron.core.rerun_state_machine:Unexpected result nan on rank 3 at iteration #4 invocation #2 (message='found NaN in local grad norm for bucket #0 in backward pass before data-parallel communication collective')\n", "fault", ("megatron.nan",), "application", ranks=(3,)),
]  # fmt: skip


@pytest.mark.parametrize("log", WHOLE, ids=lambda log: log.name)
def test_whole_log(log, tmp_path):
    """The explanation of this log is right."""
    assert_right(log, tmp_path)
