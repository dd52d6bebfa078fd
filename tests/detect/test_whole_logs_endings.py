"""What comes after "training completed", and programs on MPI: ends of processes are none, failures of their own are."""

import pytest

from whole_logs import Whole, assert_right, hf

STEPS = "".join(f"step {10 * i} loss {5 - i / 10:.2f}\n" for i in range(1, 30))
DONE = "{'train_runtime': 5123.11, 'train_samples_per_second': 12.1, 'train_steps_per_second': 0.4, 'train_loss': 1.2, 'epoch': 3.0}\n"
BARS = (
    "".join(f"\r{i // 5}%|{'#' * (i // 50)}| {i}/500 [00:{i % 60:02d}<00:10,  9.9it/s]" for i in range(25, 501, 25))
    + "\n"
)
BOX = "-" * 74 + "\n"
MPI_ENDED = f"{BOX}Primary job  terminated normally, but 1 process returned\na non-zero exit code. Per user-direction, the job has been aborted.\n{BOX}"


def raised(what):
    return f'Traceback (most recent call last):\n  File "/home/mei/train.py", line 88, in main\n    run()\n{what}\n'


LOGS = [
    Whole("the final model does not fit", hf(30) + DONE + raised("OSError: [Errno 28] No space left on device: 'out/m.safetensors'"), "fault", ("disk.full",), "storage"),
    Whole("the evaluation runs out of memory", hf(30) + DONE + raised("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.2 GiB is free."), "fault", ("torch.cuda.oom",), "application"),
    Whole("a bug after the training", hf(30) + DONE + raised("KeyError: 'eval_loss'"), "fault", ("data.bug", "python."), "application"),
    Whole("a second stage waits for ever", STEPS + "Training completed\n=== stage 2 ===\n" + STEPS + "[rank3]:[E1 10:00:00.0 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=BROADCAST, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800000 milliseconds before timing out.\n", "fault", ("nccl.timeout",)),
    Whole("a second stage dies", STEPS + "Fine-tuning complete\n" + STEPS + "Segmentation fault (core dumped)\n", "fault", ("process.segfault",)),
    Whole("a time of each epoch is no end", "".join(BARS + f"Total training time: 0:{12 * e:02d}:00\n" for e in range(1, 4)) + BARS + "Segmentation fault (core dumped)\n", "fault", ("process.segfault",)),
    Whole("an evaluation and aborts after the end", hf(30) + DONE + "".join(f"\r{i}%|{'#' * (i // 10)}| {i}/100 [00:{i % 60:02d}<00:10,  9.9it/s]" for i in range(5, 100, 5)) + "\nterminate called without an active exception\nFatal Python error: Aborted\n", "healthy"),
    Whole("aborts after the end", hf(30) + DONE + "terminate called without an active exception\nFatal Python error: Aborted\n", "healthy"),
    Whole("a tracker's pipe after the end", hf(30) + DONE + raised("BrokenPipeError: [Errno 32] Broken pipe"), "healthy"),
    Whole("Detectron's end and a crash in a destructor", STEPS + "[01/02 10:00:00 d2.engine.hooks]: Total training time: 2:11:11 (0:00:03 on hooks)\nSegmentation fault (core dumped)\n", "healthy"),
    Whole("stopped early, then ended from outside", STEPS + "Early stopping triggered\nslurmstepd: error: *** JOB 1 ON g CANCELLED AT 2026-09-21T08:03:22 ***\n", "healthy"),
    Whole("Ray's job succeeded", STEPS + "Job 'raysubmit_NRbN8RKfyZZ7nFkh' succeeded\nRuntimeError: DataLoader worker (pid 2211) is killed by signal: Killed. \n", "healthy"),
    Whole("mpirun finds no program", f"{BOX}mpirun was unable to find the specified executable file, and therefore\ndid not launch the job.  This error was first reported for process\nrank 0; it may have occurred for other processes as well.\n\nNode:       gpu01\nExecutable: ./train\n{BOX}", "fault", ("mpi.launch",), "platform"),
    Whole("mpirun as root", f"{BOX}mpirun has detected an attempt to run as root.\n\nRunning as root is *strongly* discouraged as any mistake (e.g., in\n{BOX}", "fault", ("mpi.launch",), "platform"),
    Whole("an MPI call fails", f"[n1:57315] *** An error occurred in MPI_Comm_accept\n[n1:57315] *** on communicator MPI_COMM_WORLD\n[n1:57315] *** MPI_ERR_INTERN: internal error\n[n1:57315] *** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,\n{MPI_ENDED}{BOX}mpirun detected that one or more processes exited with non-zero status, thus causing\nthe job to be terminated. The first process to do so was:\n\n  Process name: [[50012,1],0]\n  Exit code:    17\n{BOX}", "fault", ("mpi.abort.error",)),
    Whole("PETSc", f"[8]PETSC ERROR: --------------------- Error Message ------------------\n[8]PETSC ERROR: Argument out of range\n[8]PETSC ERROR: New nonzero at (102,103) caused a malloc.\n[8]PETSC ERROR: #1 MatSetValues() at /p/matrix.c:1510\n{MPI_ENDED}", "fault", ("petsc.error",), "application", ranks=(8,)),
    Whole("mpirun stopped by a person", f"Iteration 12\n^Cmpirun: killing job...\n\n{BOX}mpirun noticed that process rank 0 with PID 5997 on node n1 exited on signal 2 (Interrupt).\n{BOX}", "fault", ("mpi.interrupted",), "operator"),
    Whole("MPI before its start", "Attempting to use an MPI routine before initializing MPICH\nsrun: error: n1: tasks 0-3: Exited with exit code 1\n", "fault", ("mpi.misuse",), "application"),
    Whole("Java", f'Exception in thread "main" java.lang.OutOfMemoryError: Java heap space\n        at java.base/java.util.Arrays.copyOf(Arrays.java:3745)\n{MPI_ENDED}', "fault", ("jvm.exception",), "application"),
    Whole("HTCondor's memory", "007 (4711.000.000) 2025-03-01 10:00:00 Shadow exception!\n\tError from slot1@node12: Job has gone over memory limit of 4096 megabytes. Peak usage: 5210 megabytes.\n012 (4711.000.000) 2025-03-01 10:00:01 Job was held.\n", "fault", ("condor.memory",), "application"),
    Whole("HTCondor's end", "001 (4711.000.000) 2025-03-01 09:00:10 Job executing on host: <10.0.0.12:9618>\n005 (4711.000.000) 2025-03-01 10:00:00 Job terminated.\n\t(1) Normal termination (return value 0)\n", "healthy"),
    Whole("PBS lost a node", hf(20) + "=>> PBS: job killed: node 3 (node12) requested job terminate, 'EOF' (code 1099) - received SISTER_EOF attempting to communicate with sister MOM's\n", "fault", ("pbs.node_lost",), "hardware", nodes=("node12",)),
    Whole("LSF's warning before the limit", hf(20) + "User defined signal 2\nTERM_RUNLIMIT: job killed after reaching LSF run time limit.\nExited with exit code 140.\n", "fault", ("launching.time_limit",), "operator"),
]  # fmt: skip


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.name)
def test_whole_log_is_explained_rightly(log, tmp_path):
    """The verdict, the cause and the suspects of this log are the right ones."""
    assert_right(log, tmp_path)
