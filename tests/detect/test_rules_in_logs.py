"""Each rule's own example at the end of a healthy log: the cause stays the same whatever stands before and after it."""

import functools

import pytest

from holdfast.adapters.catalogue_files import read_catalogue
from holdfast.cli.explain import explain_logs
from whole_logs import MATCHER, hf, titan

BOX = "-" * 74
AFTER = {
    "torchrun": 'E0301 10:02:00.000000 140 torch/distributed/elastic/multiprocessing/api.py:826] failed (exitcode: 1) local_rank: 3 (pid: 8158) of binary: /usr/bin/python\nTraceback (most recent call last):\n  File "/usr/local/bin/torchrun", line 8, in <module>\n    sys.exit(main())\n    raise ChildFailedError(\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n============================================================\ntrain.py FAILED\n------------------------------------------------------------\nFailures:\n  <NO_OTHER_FAILURES>\n------------------------------------------------------------\nRoot Cause (first observed failure):\n[0]:\n  time      : 2025-03-01_10:02:00\n  host      : n1\n  rank      : 3 (local_rank: 3)\n  exitcode  : 1 (pid: 8158)\n  error_file: <N/A>\n  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html\n============================================================\n',
    "srun": "srun: error: gpu07: task 3: Exited with exit code 1\nsrun: Terminating StepId=4711.0\nslurmstepd: error: *** STEP 4711.0 ON gpu07 CANCELLED AT 2025-03-01T10:02:00 ***\nsrun: error: gpu08: tasks 8-15: Terminated\nsrun: Force Terminated StepId=4711.0\n",
    "wandb": "wandb: \nwandb: Run history:\nwandb: train/loss █▇▅▃▂▁\nwandb: 🚀 View run x at: https://wandb.ai/a/b/runs/1\nwandb: Synced 5 W&B file(s), 0 media file(s), 0 artifact file(s) and 0 other file(s)\n",
    "accelerate": "Traceback (most recent call last):\n  File \"/usr/bin/accelerate\", line 8, in <module>\n    sys.exit(main())\nsubprocess.CalledProcessError: Command '['/usr/bin/python', 'train.py']' returned non-zero exit status 1.\n",
    "deepspeed": "[2025-03-01 10:02:00,123] [INFO] [launch.py:315:sigkill_handler] Killing subprocess 8157\n[2025-03-01 10:02:00,200] [ERROR] [launch.py:321:sigkill_handler] ['/usr/bin/python', '-u', 'train.py', '--local_rank=3'] exits with return code = 1\n",
    "mpirun": f"{BOX}\nPrimary job  terminated normally, but 1 process returned\na non-zero exit code. Per user-direction, the job has been aborted.\n{BOX}\n{BOX}\nmpirun detected that one or more processes exited with non-zero status, thus causing\nthe job to be terminated. The first process to do so was:\n\n  Process name: [[3633,1],8]\n  Exit code:    1\n{BOX}\n",
    "resource tracker": "/usr/lib/python3.10/multiprocessing/resource_tracker.py:224: UserWarning: resource_tracker: There appear to be 6 leaked shared_memory objects to clean up at shutdown\n  warnings.warn('resource_tracker: There appear to be %d '\n/usr/lib/python3.10/multiprocessing/resource_tracker.py:237: UserWarning: resource_tracker: '/af0626_barrier': [Errno 2] No such file or directory: '/af0626_barrier'\n",
    "kubectl": "command terminated with exit code 1\n",
    "bereft ranks": "".join(f"[rank{r}]:[E301 10:02:0{r}.412 ProcessGroupNCCL.cpp:1895] [PG ID 0 PG GUID 0(default_pg) Rank {r}] Process group watchdog thread terminated with exception: NCCL error: remote process exited or there was a network error, NCCL version 2.21.5\nncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\nterminate called after throwing an instance of 'c10::DistBackendError'\n" for r in range(3)),
    "a script's last words": "Job finished at Sat Mar  1 10:02:10 UTC 2025\nElapsed: 3600 s\n",
    "a script's cleaning": "Cleaning up /tmp/job_4711 ...\nrm: cannot remove '/tmp/job_4711/x': No such file or directory\n",
}  # fmt: skip
LABELS = ("node04: ", "trainer-0: ", "train-0 pytorch ", "worker-3> ", "10.0.0.4: ", "(trainer-0) ", "    ")
DATED = frozenset({"jax.preempted"})
"""Their own example's time makes the silence before it the cause."""
VAGUE = ("generic.", "exit.", "process.exited", "hang.")


def cause_of(text, path):
    path.write_text(text)
    said = explain_logs([path], matcher=MATCHER, now=1740830000.0)
    return said.verdict, said.cause


@functools.cache
def examples():
    """The first example of each rule that a job's log alone may show as a cause."""
    return [
        (rule.id, rule.matches[0])
        for rule in read_catalogue()
        if rule.role == "root"
        and rule.severity not in {"info", "warning"}
        and rule.matches
        and "\n" not in rule.matches[0]
        and "kernel" not in (rule.where or ())
        and rule.id not in DATED
    ]


def changed(before, wrapped, path):
    """Rules whose example is judged otherwise when the log is wrapped."""
    found = {}
    count = 0
    for rule, example in examples():
        plain = cause_of(f"{before}{example}\n", path)
        if plain[0] != "fault" or plain[1].startswith(VAGUE):
            continue
        count += 1
        other = cause_of(wrapped(f"{before}{example}\n"), path)
        if other != plain:
            found[rule] = (plain[1], other)
    assert count > 200
    return found


@pytest.mark.parametrize("after", AFTER)
def test_what_follows_a_cause_does_not_hide_it(after, tmp_path):
    """Launchers, trackers, bereft ranks and scripts print more once a job has failed."""
    assert changed(hf(30), lambda text: text + AFTER[after], tmp_path / "job.log") == {}


@pytest.mark.parametrize("label", LABELS)
def test_a_label_does_not_hide_a_cause(label, tmp_path):
    """Whatever a collector puts before every line."""
    wrapped = changed(titan(20), lambda text: "".join(f"{label}{line}\n" for line in text.splitlines()), tmp_path / "j")
    assert wrapped == {}


def test_an_exit_code_on_the_line_does_not_hide_a_cause(tmp_path):
    """One line may tell both; what of them tells an end is no more than that."""
    less = {"composer.exited", "mpi.exited_wrapped", "python.traceback", "python.memory"}
    found = changed(hf(30), lambda text: text.rstrip("\n") + " (exit code 137)\n", tmp_path / "job.log")
    assert {rule for rule in found if rule not in less and not rule.startswith("resources.shm")} == set()
