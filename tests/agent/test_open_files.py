"""Jobs of a node as /proc shows them: which have a launcher, and which name telemetry."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.adapters.slurm.open_files import open_jobs


def process(proc: Path, pid: int, parent: int, words: str, **environ: str) -> None:
    place = proc / str(pid)
    place.mkdir(parents=True)
    (place / "comm").write_text(words.split(maxsplit=1)[0].rstrip(":") + "\n")
    (place / "stat").write_text(f"{pid} (a) b) S {parent} 1 1\n")
    (place / "cmdline").write_bytes(words.encode().replace(b" ", b"\0") + b"\0")
    (place / "status").write_text(f"Name:\tx\nNSpid:\t{pid}\t{pid - 10}\n")
    (place / "environ").write_bytes(b"".join(f"{key}={value}\0".encode() for key, value in environ.items()))
    (place / "fd").mkdir()


@pytest.mark.parametrize(
    ("beside", "has_launcher"),
    [("sleep 60", False), ("/v/python -m holdfast.launch.step_watch /job 7", True), ("/v/holdfast run a.py", True)],
)
def test_a_job_with_a_launcher_or_a_watcher_is_left_to_it(tmp_path: Path, beside: str, has_launcher: bool) -> None:
    """A launcher reads its ranks' output and slots itself, and so does the supervisor of a step by its watcher."""
    job = {"SLURM_JOB_ID": "7", "SLURM_CLUSTER_NAME": "lab", "SLURMD_NODENAME": "node2", "SLURM_RESTART_COUNT": "1"}
    process(tmp_path, 20, 1, "slurmstepd: [7.0]")
    process(tmp_path, 21, 20, "/v/python train.py", HOLDFAST_TELEMETRY_DIR="/dev/shm/slots", **job)
    process(tmp_path, 22, 1, "slurmstepd: [7.1]")
    process(tmp_path, 23, 22, beside, **job)
    process(tmp_path, 30, 1, "sleep 9", HOLDFAST_TELEMETRY_DIR="/dev/shm/other", **job)
    (found,) = open_jobs(tmp_path)
    assert (found.job_id, found.cluster, found.node, found.restart_count) == ("7", "lab", "node2", 1)
    assert found.has_launcher == has_launcher
    assert (found.telemetry, found.writers) == ((), set()) if has_launcher else (("/dev/shm/slots",), {11})


def test_equal_numbers_of_two_clusters_and_two_nodes_of_a_machine_are_told_apart(tmp_path: Path) -> None:
    """Two labs may both run a job 7 here, even under one name: then those of our own slurm.conf count."""
    for pid, cluster, node, conf in [
        (20, "lab", "node1", "/a.conf"),
        (30, "lab", "node2", "/a.conf"),
        (40, "lab", "node1", "/b.conf"),
        (50, "other", "node1", ""),
    ]:
        process(tmp_path, pid, 1, "slurmstepd: [7.0]")
        more = {"SLURM_CLUSTER_NAME": cluster, "SLURMD_NODENAME": node, "SLURM_CONF": conf}
        process(
            tmp_path, pid + 1, pid, "/v/python train.py", SLURM_JOB_ID="7", HOLDFAST_TELEMETRY_DIR=f"/tmp/{pid}", **more
        )

    def seen(conf: str) -> list[tuple[str, str, tuple[str, ...]]]:
        return [(job.cluster, job.node, job.telemetry) for job in open_jobs(tmp_path, conf)]

    ours = [("lab", "node1", ("/tmp/20",)), ("lab", "node2", ("/tmp/30",)), ("other", "node1", ("/tmp/50",))]
    assert seen("/a.conf") == ours
    assert seen("/elsewhere.conf") == sorted([*ours, ("lab", "node1", ("/tmp/40",))])


def test_a_step_that_does_not_say_where_it_runs_goes_with_the_jobs_others(tmp_path: Path) -> None:
    """The `extern` step has a bare `sleep` below it; with nobody to go with it is of no known cluster."""
    process(tmp_path, 20, 1, "slurmstepd: [7.extern]")
    process(tmp_path, 21, 20, "sleep 100000000")
    assert [(job.cluster, job.node) for job in open_jobs(tmp_path, "")] == [("", "")]
    process(tmp_path, 30, 1, "slurmstepd: [7.batch]")
    process(tmp_path, 31, 30, "holdfast run a.py", SLURM_JOB_ID="7", SLURM_CLUSTER_NAME="c", SLURMD_NODENAME="n")
    (found,) = open_jobs(tmp_path, "")
    assert (found.cluster, found.node, found.has_launcher) == ("c", "n", True)
