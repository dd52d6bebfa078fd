"""Whole logs in shapes of a fifth round of public threads, and healthy ones whose last line sounds like trouble.

Written here anew, with made-up names and values. A healthy log is known by what comes after a warning; where a warning
is the last line so far (a job that runs on), only knowing it helps.
"""

from __future__ import annotations

import pytest

from whole_logs import Whole, assert_right, hf, titan, traceback


def megatron(norm: str, steps: range) -> str:
    """Steps as Megatron-LM prints them in bfloat16; the loss is missing where it is no number."""
    loss = "" if norm == "nan" else " lm loss: 2.101234E+00 |"
    return "".join(
        f" iteration {i:8d}/   90000 | consumed samples: {i * 64:12d} | elapsed time per iteration (ms): 4100.7"
        f" | learning rate: 1.000E-04 | global batch size:    64 |{loss} loss scale: 1.0 | grad norm: {norm}"
        " | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
        for i in steps
    )


NEURON = (
    "2025-03-01 10:20:00.000122:  771  ERROR ||NEURON_CC_WRAPPER||: Got a cached failed neff at /var/tmp/neuron/m7/model.neff.\n"
    "2025-03-01 10:20:01.300122: F ./torch_xla/csrc/runtime/debug_macros.h:20] Non-OK-status: status.status() status:"
    " INTERNAL: RunNeuronCCImpl: error condition error != 0: Command '' died with <Signals.SIGHUP: 1>.\n"
)
PROBE = (
    "[   11.41] mlx5_core 0000:9b:00.0: firmware version: 20.31.1014\n"
    "[   12.77] mlx5_core 0000:9b:00.0: mlx5_load_one failed with error code -22\n"
    "[   12.78] mlx5_core: probe of 0000:9b:00.0 failed with error -22\n"
)
MES = "[ 812.4] amdgpu 0000:c3:00.0: amdgpu: MES failed to respond to msg=REMOVE_QUEUE\n[ 812.5] amdgpu 0000:c3:00.0: amdgpu: Failed to evict queue 3\n"
PROLOG = "srun: error: Task launch for 812.0 failed on node gpu31: Job prolog failed\nsrun: error: Application launch failed: Job prolog failed\n"
HUNG_PROLOG = "slurmstepd: error: Prolog hung on node gpu31\nslurmstepd: error: *** JOB 812 ON gpu31 CANCELLED AT 2025-03-01T10:11:12 ***\n"
NO_CONFIG = (
    "squeue: error: fetch_config: DNS SRV lookup failed\nsqueue: fatal: Could not establish a configuration source\n"
)
POD = "Error pod pretrain-worker-3 container pytorch exitCode: 1 terminated message: none\n"
RAY_NODE = "2025-03-01 10:30:00,160 ERROR worker.py:1767 -- The node with client ID 71ab09 has been marked dead because the monitor has missed too many heartbeats from it.\n"
NAN_EVAL = hf(40) + "{'eval_loss': nan, 'eval_samples': 0, 'eval_runtime': 1.2, 'epoch': 0.1}\n"

LOGS = (
    Whole("gradients that are no numbers are taken", megatron("1.1", range(60)) + megatron("nan", range(60, 62)), "fault", ("loss.nan",), "application"),
    Whole("one such step, and numbers again", megatron("1.1", range(60)) + megatron("nan", range(60, 61)) + megatron("1.0", range(61, 90)), "healthy"),
    Whole("a loss of zero with a norm that is no number", hf(40) + "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.2}\n", "fault", ("loss.nan",), "application"),
    Whole("an evaluation without samples", NAN_EVAL, "healthy"),
    Whole("the Neuron compiler's wrapper", NEURON, "fault", ("neuron.compile",)),
    Whole("a card that its driver cannot take", PROBE, "fault", ("kernel.probe_failed",), "hardware"),
    Whole("AMD's scheduler firmware is silent", MES, "fault", ("kernel.amdgpu",), "hardware"),
    Whole("a prolog failed on a node", PROLOG, "fault", ("slurm.prolog",), "platform", nodes=("gpu31",)),
    Whole("a prolog hung on a node", HUNG_PROLOG, "fault", ("slurm.prolog",), "platform", nodes=("gpu31",)),
    Whole("Slurm's commands find no configuration", NO_CONFIG, "fault", ("slurm.controller",), "platform"),
    Whole("a container that ended says no more than a program", POD, "fault", ("generic.exit",), "application"),
    Whole("an old Ray lost a node", hf() + RAY_NODE, "fault", ("python.ray.node_died",), "hardware"),
)  # fmt: skip

NODE_FAILURE = "slurmstepd: error: *** JOB 812 ON gpu07 CANCELLED AT 2025-03-01T10:11:12 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***\n"
HANGUP = (
    "W0301 10:11:12.1 4211 torch/distributed/elastic/agent/server/api.py:704] Received 1 death signal, shutting down workers\n"
    "torch.distributed.elastic.multiprocessing.api.SignalException: Process 4211 got signal: 1\n"
)
SEL = "   8 | 03/01/2025 | 09:00:00 | Power Supply PS1 | Presence detected | Asserted\n   9 | 03/01/2025 | 10:00:00 | Memory #0x87 | Uncorrectable ECC (@DIMMA1(CPU1)) | Asserted\n"
TIME_LIMIT = "slurmstepd: error: *** STEP 812.0 ON gpu07 CANCELLED AT 2025-03-01T{} DUE TO TIME LIMIT ***\n"
OOM_KILL = (
    "[2025-03-01T{}] error: Detected 1 oom_kill event in StepId=812.0. Some of the step tasks have been OOM Killed.\n"
)
CLOSED = "torch.distributed.elastic.rendezvous.api.RendezvousClosedError\n"
NAN_NORM = (
    "2025-03-01 10:04:01,123 WARNING hybrid_zero_optim.py:512 in step -- Nan grad norm occurs, please check it.\n"
)
PADDLE = "LAUNCH INFO 2025-03-01 10:35:50,211 Pod failed\nLAUNCH ERROR 2025-03-01 10:35:50,216 Container failed !!!\nContainer rank 0 status failed cmd ['/opt/bin/python', '-u', 'train.py'] code {} log log/workerlog.0\n"
GAUDI = "[ 43.0] habanalabs hl1: Successfully loaded firmware to device\n[ 72.9] habanalabs hl2: Failed to communicate with Device CPU (CPU-CP timeout)\n[ 72.9] habanalabs 0000:1a:00.0: Failed to initialize hl2. Device is NOT usable !\n"
PREEMPTED = "slurmstepd: error: *** JOB 812 ON gpu07 CANCELLED AT 2025-03-01T10:04:25 DUE TO PREEMPTION ***\n"
WEEKS = "[Wed Jul 31 23:14:18 2024] NVRM: Xid (PCI:0000:00:05): 43, pid=104, name=python, Ch 00000008\n[Fri Aug  9 13:32:56 2024] NVRM: Xid (PCI:0000:00:08): 94, pid='<unknown>', name=<unknown>, Contained: SM (0x1). RST: No, D-RST: No\n"
PEERMEM = "[Fri Aug 30 11:11:22 2024] nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing\n"
CEPH = "[ 812.4] ceph: mds0 hung\n"

ENDED_OUTSIDE = (
    Whole("Slurm says that a node failed, and not which", hf() + NODE_FAILURE, "fault", ("slurm.node_failure",), "hardware", nodes=()),
    Whole("the session of torchrun was closed", hf() + HANGUP, "fault", ("torch.elastic.hangup",), "operator"),
    Whole("a worker that ended itself", titan(20) + "worker 3 (pid 4711) terminated by signal 11\n", "fault", ("process.terminated_by_signal",), "application"),
    Whole("a worker that was ended", titan(20) + "worker 3 (pid 4711) terminated by signal 9\n", "unknown"),
    Whole("Slurm's clock is eight hours behind the job's", titan(20) + TIME_LIMIT.format("02:05:25"), "fault", ("slurm.time_limit",), "operator"),
    Whole("Slurm's clock is eight hours ahead", titan(20) + TIME_LIMIT.format("18:05:25"), "fault", ("slurm.time_limit",), "operator"),
    Whole("a job hung for eight hours and some", titan(20) + TIME_LIMIT.format("18:31:25"), "fault", ("hang.silence",)),
    Whole("memory, by a clock nine hours behind", titan(20) + OOM_KILL.format("01:05:25.001"), "fault", ("oom.slurm",), "application"),
    Whole("a rendezvous that had ended", titan(20) + CLOSED, "fault", ("torch.rendezvous.closed",)),
    Whole("a rendezvous that ended since a rank failed", titan(20) + traceback(3, "KeyError: 'x'") + CLOSED, "fault", ("data.bug",), "application"),
    Whole("InternEvo's gradients, step after step", titan(20) + NAN_NORM * 6, "fault", ("loss.nan",), "application"),
    Whole("InternEvo's gradients, once", titan(20) + NAN_NORM + titan(5, 21, 4), "healthy"),
    Whole("Paddle's trainer was killed", hf() + PADDLE.format(-9), "fault", ("torch.elastic.failed.killed",)),
    Whole("Paddle's trainer raised", hf() + traceback(0, "KeyError: 'x'", fmt="") + PADDLE.format(1), "fault", ("data.bug",), "application"),
    Whole("a Gaudi that does not start", GAUDI, "fault", ("kernel.reset.accelerator",), "hardware"),
    Whole("steps in the seconds that a time limit leaves", hf() + TIME_LIMIT.format("10:04:25") + "Bypassing SIGTERM: 15\n" + hf(45)[-900:], "fault", ("slurm.time_limit",), "operator"),
    Whole("a preempted attempt, and the next in the same file", titan(20) + PREEMPTED + "[rank0]:[titan] 2025-03-01 10:09:00,051 - root - INFO - Loading the checkpoint from ckpt/step-20.\n" + titan(12, 21, 9), "healthy"),
    Whole("a kernel's log of weeks: a program's faults, then a GPU's own", WEEKS, "fault", ("nvidia.xid.94",), "hardware"),
    Whole("GPUDirect's module, after a program ended", PEERMEM, "healthy"),
    Whole("a queue pair that cannot be set up", "  port_state: ACTIVE\nFailed to modify QP to RTR: Connection timed out\nerrno: 110\n", "fault", ("nccl.ibv",), "network"),
    Whole("a management controller's events", SEL, "fault", ("ipmi.event",), "hardware"),
    Whole("a Ceph server hangs", CEPH, "fault", ("kernel.ceph.hung",), "storage"),
    Whole("a Ceph server hung for a while", CEPH + "[ 980.1] ceph: mds0 came back\n", "healthy"),
)  # fmt: skip

LAST_LINES = (
    "2025-03-01 10:00:00.118231: E external/xla/xla/service/slow_operation_alarm.cc:133] The operation took 7.1s",
    "2025-03-01 10:00:00.118231: E tensorflow/core/grappler/optimizers/meta_optimizer.cc:961] layout failed: INVALID_ARGUMENT: sizes differ",
    "W0301 10:00:00.118231  4242 xla_bridge.py:913] Unable to initialize backend 'tpu': INTERNAL: Failed to open libtpu.so",
    "/usr/bin/ld: cannot find -laio: No such file or directory",
    "collect2: error: ld returned 1 exit status",
    "/bin/sh: 1: nvcc: not found",
    "node7:71:88 [0] misc/ibvwrap.cc:185 NCCL WARN lib wrapper not initialized.",
    "node7:71:88 [0] transport/nvls.cc:244 NCCL WARN Cuda failure 801 'operation not supported'",
    "node7:71:88 [0] configure_nvls_option:287 NCCL WARN NET/OFI Could not find ncclGetVersion symbol",
    "libpng error: IDAT: CRC error",
    "skipping sample 71: UnidentifiedImageError('cannot identify image file')",
    "slurmstepd: error: x11_shutdown_forward: pthread_cancel: No such process",
    'MIOpen(HIP): Error [FlushUnsafe] File is unwritable: "/tmp/gfx942.ufdb.txt"',
    "eval/loss: nan  eval/accuracy: nan (no samples in this shard)",
    "generated: the kernel wrote: Segmentation fault (core dumped)",
    "2025-03-01 10:00:00 - ERROR - math_verify.parser - Failed to parse the answer: \\boxed{}",
    "ERROR:opentelemetry.exporter:Failed to export traces to collector:4317",
    "launcher: the previous attempt ended with exit code 137, restarting from step 4000",
)  # fmt: skip


@pytest.mark.parametrize("log", [*LOGS, *ENDED_OUTSIDE], ids=lambda log: log.name)
def test_whole_log_is_explained_rightly(log, tmp_path):
    """The verdict, the cause and the suspects of this log are the right ones."""
    assert_right(log, tmp_path)


@pytest.mark.parametrize("line", LAST_LINES)
def test_a_job_that_runs_on_is_healthy_whatever_it_said_last(line, tmp_path):
    """None of these lines is taken for a fault, though nothing comes after it yet."""
    assert_right(Whole("last line", titan() + line + "\n", "healthy"), tmp_path)
