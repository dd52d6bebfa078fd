"""Whole logs in shapes that pasted logs of RL trainers, daemons and clouds showed: written here anew, with made-up values."""

from __future__ import annotations

import pytest

from whole_logs import Whole, assert_right, hf, titan, traceback, watchdog

RAY_LOST = "(raylet) A worker died or was killed while executing a task by an unexpected system error. To troubleshoot the problem, check the logs for the dead worker. Worker IP address: 10.0.0.4 Worker PID: 881 Worker exit type: SYSTEM_ERROR Worker exit detail: Worker exits unexpectedly by a signal. SystemExit is raised (sys.exit is called). Exit code: 1. The process receives a SIGTERM.\n"
RL = "".join(
    f"(TaskRunner pid=41) step:{s} - actor/loss:0.0{s} - actor/grad_norm:0.4 - timing_s/step:20.1\n" for s in (7, 8)
)
RL_DONE = "(TaskRunner pid=41) (\"Final validation metrics: {'val/test_score/sums': 0.71}\")\n"
MARKED_DEAD = "2025-03-01 10:05:00,096\tWARNING worker.py:1462 -- The node with node id: 8f20ab and ip: 10.0.0.9 has been marked dead because the detector has missed too many heartbeats from it. This can happen when a raylet crashes unexpectedly or has lagging heartbeats.\n"
ACTOR_LOST = (
    "(TrainController pid=51, ip=10.0.0.3) The actor died unexpectedly before finishing this task.\n"
    "(TrainController pid=51, ip=10.0.0.3) \tclass_name: RayTrainWorker\n"
    "(TrainController pid=51, ip=10.0.0.3) The actor died because its node has died. Node Id: 8f20ab\n"
)
CTLD = (
    "[2025-03-01T10:00:00.101] sched: _slurm_rpc_allocate_resources JobId=12 NodeList=gpu7 usec=401\n"
    "[2025-03-01T10:04:00.580] error: Node gpu7 appears to have a different slurm.conf than the slurmctld.  This could cause issues with communication and functionality.  Please review both files and make sure they are the same.\n"
    "[2025-03-01T10:04:00.580] Node gpu7 now responding\n"
    "[2025-03-01T10:30:00.001] _job_complete: JobId=12 WEXITSTATUS 0\n"
)
PRESSURE = (
    "I0301 10:00:00.242204   771 eviction_manager.go:304] eviction manager: node conditions - transition period not met: [DiskPressure]\n"
    "W0301 10:00:00.242319   771 eviction_manager.go:344] eviction manager: attempting to reclaim ephemeral-storage\n"
)
EVICTS = "I0301 10:00:01.002311   771 eviction_manager.go:576] eviction manager: pod train-worker-1_ml(0a) is evicted successfully\n"
STALLED = (
    "[1,0]<stderr>:[2025-03-01 10:05:00.874229: W horovod/common/operations.cc:588] One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting for remainder of ranks for more than 60 seconds.\n"
    "[1,0]<stderr>:Stalled ops:HorovodBroadcast_dense_1_bias_0 [missing ranks: 2]\n"
)
MES = (
    "[44517.472904] amdgpu 0000:03:00.0: amdgpu: MES failed to respond to msg=REMOVE_QUEUE\n"
    "[44517.473034] amdgpu 0000:03:00.0: amdgpu: GPU reset begin!\n"
)
LAME = (
    "INFO:tensorflow:global_step/sec: 2.20221\n"
    "INFO:tensorflow:ShutdownHook: lame workers found: HeartbeatManager(/job:worker/replica:0/task:0/device:CPU:0)\n"
    "WARNING:tensorflow:Resetting coordinator.\n"
)
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
OLD_WATCHDOG = "[rank2]:[E ProcessGroupNCCL.cpp:475] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=110, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600119 milliseconds before timing out.\n"
INVAL = (
    "Mar 01 10:00:52 ctl1 slurmctld[807]: slurmctld: error: Setting node gpu7 state to INVAL with reason:gres/gpu count reported lower than configured (7 < 8)\n"
    "Mar 01 10:00:52 ctl1 slurmctld[807]: slurmctld: drain_nodes: node gpu7 state set to DRAIN\n"
)
CTRL_C = "^C[2025-03-01 10:20:33,011] torch.distributed.elastic.agent.server.api: [WARNING] Received Signals.SIGINT death signal, shutting down workers\n"
MLX5 = "[3312.118] mlx5_core 0000:19:00.0: wait_func:1167:(pid 210): CREATE_EQ(0x301) timeout. Will cause a leak of a command resource\n"
LIMITED = "HfHubHTTPError: 429 Client Error: Too Many Requests for url: https://hub.example/api/datasets/x\n"

LOGS = (
    Whole("Ray ends a worker after an RL run's last validation", RL + RL_DONE + RAY_LOST, "healthy"),
    Whole("Ray loses a worker in the middle of an RL run", RL + RAY_LOST, "fault", ("process.killed.ray",), "unknown"),
    Whole("Ray marks a node as dead", titan(6) + MARKED_DEAD, "fault", ("python.ray.node_died",), nodes=("10.0.0.9",)),
    Whole("who tells of a lost node is not the lost one", ACTOR_LOST, "fault", ("python.ray.actor",), nodes=()),
    Whole("slurmctld sees another slurm.conf on a node", CTLD, "healthy"),
    Whole("a node's disk is nearly full", PRESSURE, "healthy"),
    Whole("the kubelet evicts", PRESSURE + EVICTS, "fault", ("k8s.evicted",), "platform"),
    Whole("Horovod names the rank that is missing", STALLED, "fault", ("horovod.missing",), ranks=(2,)),
    Whole("Horovod's missing rank came", STALLED + titan(6), "healthy"),
    Whole("an AMD GPU's scheduler does not answer", MES, "fault", ("kernel.amdgpu.stuck",), "hardware"),
    Whole(
        "no line has a time: the ECC error stands before the time-out",
        hf() + traceback(5, ECC) + OLD_WATCHDOG,
        "fault",
        ("cuda.ecc",),
        "hardware",
        ranks=(5,),
    ),
    Whole(
        "only the time-outs have a time: the ECC error stands before them",
        hf() + traceback(5, ECC) + watchdog(2) + watchdog(3),
        "fault",
        ("cuda.ecc",),
        "hardware",
        ranks=(5,),
    ),
    Whole("time-outs with nothing before them", hf() + OLD_WATCHDOG, "fault", ("nccl.timeout",), "unknown"),
    Whole("slurmctld misses a GPU", INVAL, "fault", ("slurm.gres_missing",), "hardware", nodes=("gpu7",)),
    Whole("torchrun gets Ctrl-C", titan(4) + CTRL_C, "fault", ("torch.elastic.interrupted",), "operator"),
    Whole("a network card does not answer its driver", MLX5, "fault", ("kernel.mlx5.failed",), "network"),
    Whole("a hub refuses", LIMITED, "fault", ("net.rate_limited",), "network", helps=True),
    Whole("a hub refused for a while", LIMITED + titan(6), "healthy"),
    Whole("a TPU is taken back", LAME, "fault", ("tpu.lame",), "platform", helps=True),
)


@pytest.mark.parametrize("log", LOGS, ids=[log.name for log in LOGS])
def test_whole_log_is_explained_rightly(log, tmp_path):
    """The verdict, the cause and the suspects of this log are the right ones."""
    assert_right(log, tmp_path)
