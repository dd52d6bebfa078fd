"""Whole logs of accelerators and frameworks beside CUDA and PyTorch: Ascend, Gaudi, Neuron, MXNet, Paddle, MindSpore.

Written here anew in the tools' formats, with made-up names and values; half of the reasons stand below the call that failed.
"""

from __future__ import annotations

import pytest

from whole_logs import Whole, assert_right, hf, titan, traceback

CANN = "[ERROR] 2025-04-08-18:07:20 (PID:{pid}, Device:{r}, RankID:{r}) ERR02200 DIST call hccl api failed.\n"
HCCL = "RuntimeError: [ERROR] HCCL error in: torch_npu/csrc/distributed/ProcessGroupHCCL.cpp:64"
SYNC = (
    "RuntimeError: npuSynchronizeDevice:build/CMakeFiles/torch_npu.dir/compiler_depend.ts:479 NPU function error: "
    "AclrtSynchronizeDeviceWithTimeout, error code is 507048"
)
NOTIFY = (
    "EI0002: [PID: 4711] 2025-06-25-10:45:23.586.187 The wait execution of the Notify register times out. Reason: The "
    "Notify register has not received the Notify record from remote rank: [unknown].\n"
)
H5 = (
    "OSError: Unable to create file (file write failed: time = Tue Dec  1 08:28:02 2020\n"
    ", filename = '/scratch/mei/last.ckpt.h5', file descriptor = 5, errno = 28, error message = 'No space left on "
    "device', buf = 0x7182fa8, total write size = 96, bytes this sub-write = 96, offset = 0)\n"
)

LOGS = (
    Whole(
        "ascend: an earlier process holds the NPU",
        traceback(3, HCCL)
        + CANN.format(pid=927, r=3)
        + "EJ0001: 2025-05-21-11:57:54.167.645 Failed to initialize the HCCP process. Reason: Maybe the last training process is running.\n"
        "        Solution: Wait for 10s after killing the last training process and try again.\n"
        "        rtGetDevMsg execute failed, reason=[driver error:internal error][FUNC:FuncErrorReason][LINE:53]\n",
        "fault",
        ("hccl.held",),
        domain="platform",
    ),
    Whole(
        "ascend: the wait for a notify is told below the call",
        hf() + traceback(0, SYNC) + CANN.format(pid=4711, r=0) + NOTIFY,
        "fault",
        ("hccl.failed",),
        domain="unknown",
    ),
    Whole("ascend: a call fails and nothing tells more", hf() + traceback(1, HCCL), "fault", ("hccl.failed.call",)),
    Whole(
        "ascend: the memory of an NPU is broken",
        hf() + traceback(5, SYNC.replace("507048", "507054")) + "[Error]: The memory of the device is abnormal.\n",
        "fault",
        ("npu.memory",),
        domain="hardware",
        ranks=(5,),
    ),
    Whole(
        "ascend: no memory",
        hf() + traceback(3, "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 3; 60.96 GiB total capacity; 55.10 GiB already allocated)"),
        "fault",
        ("torch.cuda.oom",),
        domain="application",
    ),
    Whole(
        "gaudi: the graph compiler refuses a node",
        traceback(2, "RuntimeError: synNodeCreateWithId failed for node: batch_gemm with synStatus 26 [Generic failure]. ."),
        "fault",
        ("habana.graph",),
        domain="application",
    ),
    Whole(
        "neuron: more cores than there are",
        traceback(0, "RuntimeError: NeuronDevice::process_nrtd_response: Context=NRTD_CTX_INITIALIZE NRTD response code 'NERR_RESOURCE_NC' (9) There were insufficent NCs for the requested operation"),
        "fault",
        ("neuron.cores",),
        domain="application",
    ),
    Whole(
        "mxnet: no address of its own",
        traceback(0, "mxnet.base.MXNetError: [13:30:33] src/van.cc:63: Check failed: !ip.empty() failed to get ip", fmt=""),
        "fault",
        ("mxnet.van",),
    ),
    Whole("keras: the disk fills under a checkpoint", traceback(0, H5.rstrip("\n"), fmt=""), "fault", ("disk.full",), domain="storage"),
    Whole(
        "paddle: cuDNN is not installed",
        traceback(0, "RuntimeError: (PreconditionNotMet) Cannot load cudnn shared library. Cannot invoke method cudnnGetVersion.", fmt=""),
        "fault",
        ("cuda.libraries_missing",),
        domain="platform",
    ),
    Whole(
        "triton: Python's headers are missing",
        hf(10)
        + "/tmp/tmpq7/cuda_utils.c:5:10: fatal error: Python.h: No such file or directory\n    5 | #include <Python.h>\n"
        "compilation terminated.\n"
        + traceback(0, "subprocess.CalledProcessError: Command '['/usr/bin/gcc', '/tmp/tmpq7/cuda_utils.c', '-O3', '-shared']' returned non-zero exit status 1.", fmt=""),
        "fault",
        ("launching.build.headers",),
        domain="platform",
    ),
    Whole(
        "the cloud takes a spot machine back",
        hf() + "Dec 17 16:03:58Z gpu-4-1tb-7 start-worker 2025/12/17 16:03:58 GCP Metadata Service says termination is imminent\n"
        "Dec 17 16:04:09Z gpu-4-1tb-7 systemd-logind Power key pressed.\n",
        "fault",
        ("launching.spot",),
        domain="operator",
    ),
    Whole(
        "an extension cannot be built and the program does without",
        "RuntimeError: Ninja is required to load C++ extensions (pip install ninja to get it)\n"
        "falling back to the slow implementation\n" + titan(40),
        "healthy",
    ),
    Whole(
        "a library of NCCL is looked for in two places",
        "INFO 08-20 09:48:31 [utils.py:1045] Found nccl from library libnccl.so.2\n" + titan(20),
        "healthy",
    ),
)  # fmt: skip


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.name)
def test_whole_log_is_explained_rightly(log, tmp_path):
    """The verdict, the cause and the domain of this log are the right ones."""
    assert_right(log, tmp_path)
