"""Whole logs in shapes that a fourth round of pasted logs showed: written here anew, with made-up values."""

from __future__ import annotations

import pytest

from whole_logs import Whole, assert_right, hf, titan, traceback

PYXIS = (
    "pyxis: importing docker image: reg.example#team/train:9\n"
    "slurmstepd: error: pyxis: child 4711 failed with error code: 1\n"
    "slurmstepd: error: pyxis: failed to import docker image\n"
    "slurmstepd: error: pyxis: printing enroot log file:\n"
)
PYXIS_END = (
    "slurmstepd: error: pyxis: couldn't start container\n"
    "slurmstepd: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1\n"
    "slurmstepd: error: Failed to invoke spank plugin stack\n"
    "srun: error: gpu7: task 0: Exited with exit code 1\n"
)
CONTAINER_FULL = PYXIS + "slurmstepd: error: pyxis:     Write failed because No space left on device\n" + PYXIS_END
CONTAINER_RIGHTS = (
    PYXIS
    + "slurmstepd: error: pyxis:     mkdir: cannot create directory '/run/enroot': Permission denied\n"
    + PYXIS_END
)
OUT_OF_MEMORY = (
    "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=77.0 cgroup. Some of your processes may have been killed by the cgroup out-of-memory handler.\n"
    "srun: error: gpu7: task 3: Out Of Memory\n"
)
NO_CGROUP = (
    "slurmd: error: Couldn't find the specified plugin name for cgroup/v2 looking at all files\n"
    "slurmd: error: cannot create cgroup context for cgroup/v2\n"
    "slurmd: error: slurmd initialization failed\n"
)
FRESH_CTLD = (
    "[2025-03-01T10:00:00.702] error: Could not open node state file /var/spool/node_state: No such file or directory\n"
    "[2025-03-01T10:00:00.702] error: NOTE: Trying backup state save file. Information may be lost!\n"
    "[2025-03-01T10:00:00.802] Running as primary controller\n"
    "[2025-03-01T10:01:00.802] sched: Allocate JobId=3 NodeList=gpu7 #CPUs=1 Partition=main\n"
)
DEAD_CTLD = (
    "[2025-03-01T10:00:00.015] error: gres_device_major: stat(/dev/nvidia2): No such file or directory\n"
    "[2025-03-01T10:00:00.020] fatal: can't stat gres.conf file /dev/nvidia2: No such file or directory\n"
)
SCHEDULED = "  Normal   Scheduled    9m    default-scheduler  Successfully assigned team/train-0 to gpu7\n"
MOUNT = '  Warning  FailedMount  9m    kubelet            MountVolume.SetUp failed for volume "token" : failed to sync configmap cache: timed out waiting for the condition\n'
STARTED = "  Normal   Started      8m    kubelet            Started container train\n"
LOST_DAEMON = (
    "--------------------------------------------------------------------------\n"
    "PRTE has lost communication with a remote daemon.\n\n"
    "  HNP daemon   : [prterun-gpu1-77@0,0] on node gpu1\n"
    "  Remote daemon: [prterun-gpu1-77@0,1] on node gpu2\n"
)
CUDA_HINT = (
    traceback(2, "torch.AcceleratorError: CUDA error: an illegal memory access was encountered")
    + "[rank2]: Search for `cudaErrorIllegalAddress' in https://docs.nvidia.com/cuda/x for more information.\n"
)
NVME = (
    "[   31.777624] nvme nvme0: I/O tag 641 (c281) opcode 0x1 (I/O Cmd) QID 8 timeout, aborting req_op:WRITE(1) size:4096\n"
    "[   61.985629] nvme nvme0: I/O tag 641 (c281) opcode 0x1 (I/O Cmd) QID 8 timeout, reset controller\n"
)
ODD_DRIVER = "[ 8121.100200] xaccel 0000:3b:00.0: firmware crash detected, code 0x17\n"
BOOT = (
    "[    5.100101] ERST: Error Record Serialization Table (ERST) support is initialized.\n"
    "[    6.100101] pcieport 0000:00:01.0: AER: enabled with IRQ 34\n"
    "[    9.100101] xaccel 0000:3b:00.0: recovery from fatal error is supported\n"
)
SPAWNED = (
    traceback(0, "Exception: ", fmt="")
    + "\n----------------------------------------------\nProcess 1 terminated with the following error:\n"
    + traceback(0, "OSError: (External) the context of the device is gone", fmt="")
)
SAGEMAKER = "[1,mpirank:7,algo-1]<stderr>:FileNotFoundError: [Errno 2] No such file or directory: '/opt/ml/x.json'\n"
ENGINE = "".join(
    f"(EngineCore pid=81) ERROR 06-03 10:12:11 [core.py:1138] {line}\n"
    for line in (
        "EngineCore encountered a fatal error.",
        "Traceback (most recent call last):",
        '  File "/opt/engine/executor.py", line 350, in answer',
        "QueueGoneError: call of step was not answered",
    )
)
SERVICE = "Mar  1 10:00:01 gpu7 systemd[1]: nvidia-fabricmanager.service: Failed with result 'exit-code'.\n"
SERVICE_UP = "Mar  1 10:00:09 gpu7 systemd[1]: Started nvidia-fabricmanager.service - NVIDIA fabric manager service.\n"
AGENT = '{"level":"warn","msg":"XID 79(GPU has fallen off the bus) detected on PCI:0000:ae:00"}\n'
LOGGED = "ERROR: the plug-in of the store is not there\nERROR: no store could be opened\nERROR: initialization failed\n"
JAX_PEER = "F0301 10:05:00.111131 1 client.h:80] Terminating process because the JAX distributed service detected fatal errors. absl::Status: ABORTED: Task /job:jax_worker/replica:0/task:12 has failed with error.\n"
SLURMD_ERROR = (
    "[2025-03-01T10:00:01.101] error: slurmd error running JobId=77 on node(s)=gpu7: Job credential expired\n"
)
MEAN_IS_NAN = "".join(
    f"Epoch 0:   3%|3         | {step}/9000 [2:12:19<76:15:08, 14.05s/it, loss=nan, v_num=, reduced_train_loss=3.910]\n"
    for step in range(561, 566)
)
DRAINED = "[2025-03-01T10:00:00.123] update_node: node gpu7 reason set to: NHC: check_hw_gpu: 7 of 8 GPUs\n"
UNFIT = "Warning  GPUMemoryError  2m  plugin  Device=nvidia3, UUID=GPU-1a2b, SN=165 has failed remapped rows; The device will go unhealthy.\n"

LOGS = (
    Whole("a container's image does not fit on the disk", CONTAINER_FULL, "fault", ("disk.full",), "storage"),
    Whole("a container's folder may not be made", CONTAINER_RIGHTS, "fault", ("slurm.pyxis",), "platform"),
    Whole("a container fails without a word", PYXIS + PYXIS_END, "fault", ("slurm.container_failed",), "platform"),
    Whole("srun names the node that ran out of memory", hf() + OUT_OF_MEMORY, "fault", ("oom.slurm",), nodes=("gpu7",)),
    Whole("slurmd finds no cgroup plugin", NO_CGROUP, "fault", ("slurm.cgroup",), "platform"),
    Whole("slurmctld starts without a state", FRESH_CTLD, "healthy"),
    Whole("slurmctld ends itself", DEAD_CTLD, "fault", ("slurm.fatal",), "platform"),
    Whole("a volume came late", SCHEDULED + MOUNT + STARTED, "healthy"),
    Whole("a volume never came", SCHEDULED + MOUNT, "fault", ("k8s.mount",), "storage"),
    Whole("MPI's message names the lost node lines later", LOST_DAEMON, "fault", ("mpi.daemon_lost",), nodes=("gpu2",)),
    Whole(
        "a hint below a CUDA error is no error", titan(3) + CUDA_HINT, "fault", ("cuda.",), "application", ranks=(2,)
    ),
    Whole("an NVMe disk is reset (Linux 6's words)", NVME, "fault", ("kernel.nvme",), "storage"),
    Whole("a driver that no rule knows", ODD_DRIVER, "unknown"),
    Whole("a driver that no rule knows beside a job at work", titan(6) + ODD_DRIVER, "healthy"),
    Whole("a machine boots", BOOT, "healthy"),
    Whole("a bare exception frames another", SPAWNED, "fault", ("python.exception",), "application"),
    Whole("SageMaker's tag names the rank", SAGEMAKER, "fault", ("data.missing",), ranks=(7,)),
    Whole("a logger writes a traceback line by line", titan(3) + ENGINE, "fault", ("python.exception",)),
    Whole("the service that NVLink needs did not start", SERVICE, "fault", ("health.service",), nodes=("gpu7",)),
    Whole("that service started at the second try", SERVICE + SERVICE_UP, "healthy"),
    Whole("a health agent tells of an Xid", AGENT, "fault", ("nvidia.xid.79",), "hardware"),
    Whole("the first of several errors is the cause", LOGGED, "fault", ("generic.error",)),
    Whole("a node's slurmd cannot run a job", SLURMD_ERROR, "fault", ("slurm.slurmd_error",), nodes=("gpu7",)),
    Whole("a bar's running mean is not the step's loss", MEAN_IS_NAN, "healthy"),
    Whole("a health check takes a node out", DRAINED, "fault", ("slurm.drained",), "hardware", nodes=("gpu7",)),
    Whole("a device plugin takes a GPU out", UNFIT, "fault", ("health.gpu",), "hardware"),
    Whole("JAX names the task that failed", JAX_PEER, "fault", ("jax.task_lost",), ranks=(12,)),
)


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.name)
def test_whole_log(log, tmp_path):
    """Verdict, cause, domain and suspects of the whole log are right."""
    assert_right(log, tmp_path)
