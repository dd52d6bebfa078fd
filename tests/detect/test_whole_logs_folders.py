"""A job's output beside the logs of its nodes and of the scheduler: what of them is the job's, and what is not."""

import pytest

from holdfast.cli.explain import explain_logs
from whole_logs import MATCHER, megatron

KERNEL = "2025-03-01T{at}.120000+00:00 {host} kernel: {line}\n"
RAISED = 'Traceback (most recent call last):\n  File "/home/mei/train.py", line 88, in save\n    dump()\n'


def kernel(at, line, host="gpu01"):
    return KERNEL.format(at=at, line=line, host=host)


CASES = {
    "the kernel says why the checkpoint could not be written": (
        {
            "job.out": megatron(60) + RAISED + "OSError: [Errno 5] Input/output error: '/scratch/ckpt/iter_60'\n",
            "gpu01-dmesg.txt": kernel("10:09:55", "LustreError: 167-0: scratch-OST0003-osc-ffff8: This client was evicted by scratch-OST0003; in progress operations using this service will fail."),
        },
        ("fault", "kernel.lustre.evicted", ("gpu01",)),
    ),
    "a process that the kernel ended in the middle was none of the job's": (
        {
            "job.out": megatron(80),
            "gpu01-dmesg.txt": kernel("10:05:01", "Memory cgroup out of memory: Killed process 99123 (node_exporter) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:0"),
        },
        ("healthy", "none", ()),
    ),
    "a process that the kernel ended at the end was the job's": (
        {
            "job.out": megatron(60) + "/var/spool/slurmd/job4711/slurm_script: line 12:  8156 Killed                  python train.py\n",
            "gpu01-dmesg.txt": kernel("10:09:58", "Out of memory: Killed process 8156 (python) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:0"),
        },
        ("fault", "oom.kernel", ("gpu01",)),
    ),
    "an event names the node that was lost": (
        {
            "train-0.log": megatron(60),
            "events.txt": "LAST SEEN   TYPE      REASON                 OBJECT            MESSAGE\n5m          Normal    NodeNotReady           node/gpu-3        Node gpu-3 status is now: NodeNotReady\n4m          Normal    TaintManagerEviction   pod/train-3       Marking for deletion Pod default/train-3\n",
        },
        ("fault", "k8s.node_lost", ("gpu-3",)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_folder_is_explained_rightly(name, tmp_path):
    """The verdict, the cause and the node."""
    files, expected = CASES[name]
    for file, text in files.items():
        (tmp_path / file).write_text(text)
    said = explain_logs([tmp_path], matcher=MATCHER, now=1740830000.0)
    assert (said.verdict, said.cause, said.suspects.nodes) == expected, said.story
