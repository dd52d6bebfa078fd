"""Whole logs in shapes that public threads showed to be missing: written here anew, with made-up names and values.

docs/explain.md says how the threads' own logs, which are not kept here, were judged before and after.
"""

from __future__ import annotations

import pytest

from whole_logs import Whole, assert_right, hf, titan

OLD_WATCHDOG = "[E ProcessGroupNCCL.cpp:467] [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4411, OpType=BROADCAST, NumelIn=8, NumelOut=8, Timeout(ms)=1200000) ran for 1200{r}41 milliseconds before timing out.\n"
HCCL_WATCHDOG = "[rank{r}]:[E301 10:40:0{r}.123456789 compiler_depend.ts:581] [Rank {r}] Watchdog caught collective operation timeout: WorkHCCL(SeqNum=52, OpType=ALLGATHER, Timeout(ms)=1800000) ran for 1800{r}12 milliseconds before timing out.\n"
IGNORED = (
    "Exception ignored in: <function Pool.__del__ at 0x7f11a0>\nTraceback (most recent call last):\n"
    '  File "/usr/lib/python3.11/multiprocessing/pool.py", line 271, in __del__\n    self._change_notifier.put(None)\n'
    "TypeError: 'NoneType' object is not callable\n"
)
BARE_NAME = (
    'Traceback (most recent call last):\n  File "/home/mei/train.py", line 31, in main\n    x = x.cuda()\n'
    "AssertionError: \nThe NVIDIA driver on your system is too old (found version 11040).\nPlease update your GPU driver.\n"
)
FALLEN = (
    "Mar 01 10:00:03 node41 kernel: NVRM: The NVIDIA GPU 0000:4e:00.0\n"
    "                               NVRM: (PCI ID: 10de:2330) installed in this system has\n"
    "                               NVRM: fallen off the bus and is not responding to commands.\n"
)
REFUSED = (
    'Traceback (most recent call last):\n  File "/home/mei/save.py", line 9, in put\n    s3.put_object(**what)\n'
    "botocore.exceptions.ClientError: An error occurred (AccessDenied) when calling the PutObject operation: not allowed\n"
)
SHM_FULL = "node5:88:91 [1] misc/shmutils.cc:80 NCCL WARN Error: failed to extend /dev/shm/nccl-Qx to 9637892 bytes, error: No space left on device (28)\n"
MPI_INIT = "*** An error occurred in MPI_Init_thread\n*** on a NULL communicator\n*** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort)\n"
AGAIN = "2025-03-01 10:40:00.120: E external/xla/coordination_service.cc:980] /job:jax_worker/replica:0/task:6 unexpectedly tried to connect with a different incarnation. It has likely restarted.\n"
DEEPSPEED = "[2025-03-01 10:40:00,269] [ERROR] [launch.py:325:sigkill_handler] ['/opt/py/bin/python', '-u', 'sft.py'] exits with return code = -11\n"
UNCORRECTED = "[  812.4] EDAC skx MC1: HANDLING MCE MEMORY ERROR\n[  812.5] EDAC skx MC1: CPU 22: Machine Check Event: 0 Bank 7: bc00010001010090\n"
CORRECTED = UNCORRECTED.replace("bc00010001010090", "9c00010001010090")
END_OF_DATA = "2025-03-01 10:50:01.3: I tensorflow/core/framework/local_rendezvous.cc:407] Local rendezvous is aborting with status: OUT_OF_RANGE: End of sequence\n\t [[{{node IteratorGetNext}}]]\n"
SPOT = "2025-03-01 10:03:20,001 WARNING spot instance interruption notice: this machine ends at 10:05\n2025-03-01 10:05:18,001 ERROR received SIGTERM, leaving\n"
MMENGINE = "".join(
    f"06/02 11:{20 + i}:00 - mmengine - INFO - Epoch(train)  [3][{50 * i + 50:4d}/7330]  lr: 2.0e-02  time: 0.44  loss: {2 - i / 10:.4f}\n"
    for i in range(6)
)
KERAS = "".join(
    f"Epoch {i}/4\n469/469 [==============================] - 2s 4ms/step - loss: 0.{40 - i}\n" for i in range(1, 5)
)
COMPLAINT = "ERROR: unable to open the site's module list\n"
LOGGING = (
    '--- Logging error ---\nTraceback (most recent call last):\n  File "/usr/lib/python3.11/logging/__init__.py", line 1114, in emit\n'
    "    self.flush()\nOSError: [Errno 9] Bad file descriptor\nCall stack:\n  File \"train.py\", line 90, in main\nMessage: 'saved'\n"
)

LOGS = (
    Whole(
        "watchdog lines without a prefix name their ranks",
        "".join(OLD_WATCHDOG.format(r=r) for r in (0, 1, 3)),
        "fault",
        ("nccl.timeout",),
        ranks=(2,),
    ),
    Whole(
        "another vendor's watchdog",
        titan() + "".join(HCCL_WATCHDOG.format(r=r) for r in (0, 2, 3)),
        "fault",
        ("nccl.timeout",),
        ranks=(1,),
    ),
    Whole("an exception that Python ignores at the end", hf() + IGNORED, "healthy"),
    Whole(
        "an exception whose message begins on the next line",
        hf() + BARE_NAME,
        "fault",
        ("cuda.driver_old",),
        "platform",
    ),
    Whole(
        "NVRM's three lines, of which the first alone names the host",
        FALLEN,
        "fault",
        ("nvidia.gpu",),
        "hardware",
        nodes=("node41",),
    ),
    Whole("an object store that refuses", titan() + REFUSED, "fault", ("data.auth",), "application"),
    Whole("shared memory is full, not the disk", SHM_FULL, "fault", ("resources.shm",), "platform"),
    Whole("MPI does not start", MPI_INIT, "fault", ("mpi.init",), "platform"),
    Whole("a JAX task that came back", AGAIN, "fault", ("jax.task_lost",), ranks=(6,)),
    Whole("DeepSpeed's launcher saw a crash", hf() + DEEPSPEED, "fault", ("deepspeed.exit.crash",), "application"),
    Whole("a machine check that was not corrected", UNCORRECTED, "fault", ("kernel.mce",), "hardware"),
    Whole("a machine check that was corrected", CORRECTED, "healthy"),
    Whole("a data set that came to its end", hf() + END_OF_DATA, "healthy"),
    Whole("a complaint before MMEngine's steps", COMPLAINT + MMENGINE, "healthy"),
    Whole("a complaint before Keras's steps", COMPLAINT + KERAS, "healthy"),
    Whole("a complaint after MMEngine's last step", MMENGINE + COMPLAINT, "fault", ("generic.",)),
    Whole("logging that could not write at the end", MMENGINE + LOGGING, "healthy"),
    Whole("the cloud takes the machine back", titan() + SPOT, "fault", ("launching.spot",), "operator"),
)


@pytest.mark.parametrize("log", LOGS, ids=[log.name for log in LOGS])
def test_whole_log_is_explained_rightly(log, tmp_path):
    """The verdict, the cause and the suspects of this log are the right ones."""
    assert_right(log, tmp_path)
