"""The Slurm exporter's reading, on what squeue and sinfo of a real cluster printed."""

from __future__ import annotations

import calendar
from collections import Counter
from pathlib import Path

from holdfast.adapters.slurm.figures import OTHERS, USERS_MAX, Look, QueuedJob, SlurmCollector, parse_jobs, parse_nodes

RECORDED = Path(__file__).parent / "recorded" / "22.05"


def at(text: str) -> float:
    return float(calendar.timegm((2026, 11, 22, *(int(part) for part in text.split(":")), 0, 0, 0)))


def recorded() -> list[QueuedJob]:
    return parse_jobs((RECORDED / "squeue-figures.txt").read_text())


def test_every_line_of_squeue_is_read() -> None:
    """Array tasks, a job whose start is only foreseen, a held one, ends of every kind; a name does not matter."""
    jobs = recorded()
    lines = (RECORDED / "squeue-figures.txt").read_text().splitlines()
    assert len(jobs) == len(lines) > 0
    states = Counter(job.state for job in jobs)
    assert states["completed"] == states["failed"] == states["cancelled"] == 1
    assert states["running"] + states["completing"] >= 4
    assert {job.id for job in jobs} >= {"3_0", "3_1", "3_2", "3_3"}
    assert all(job.submitted and job.user and job.partition for job in jobs)


def test_every_node_of_sinfo_is_read_with_its_state() -> None:
    """Drained, draining under a job, down: as sinfo calls them, without its marks."""
    found = parse_nodes((RECORDED / "sinfo-figures.txt").read_text())
    assert sorted(found) == ["node01", "node02", "node03", "node04"]
    assert (found["node01"], found["node03"], found["node04"]) == ("draining", "down", "drained")


def test_lines_of_another_form_are_left_out() -> None:
    """A partition or user that forges a field makes no figure; times that are not known are 0."""
    assert parse_jobs("7|RUNNING|gpu|a|b|c|d|e|f\n\nslurm_load_jobs error\n") == []
    one = parse_jobs("8|PENDING|gpu|mei|2026-11-22T04:59:22|N/A|NONE\n")[0]
    assert (one.submitted, one.started, one.ended) == (at("4:59:22"), 0.0, 0.0)


class Seen:
    """Looks that were prepared."""

    def __init__(self, *looks: Look) -> None:
        self.looks = list(looks)

    def __call__(self) -> Look:
        return self.looks.pop(0)


def figures(collector: SlurmCollector) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in collector.collect()
        for sample in family.samples
    }


def test_what_ended_between_two_looks_is_counted_once_and_what_never_ran_is_not() -> None:
    """Of the recorded ends two had run; the job that was cancelled in the queue waited for nothing and ran for nothing."""
    jobs, nodes = recorded(), parse_nodes((RECORDED / "sinfo-figures.txt").read_text())
    now = max(job.submitted for job in jobs) + 60
    look = Look(now + 30, jobs, nodes)
    collector = SlurmCollector(Seen(Look(now, [], nodes), look, look, look), look_again_s=0.0)
    figures(collector)
    for _ in range(3):
        found = figures(collector)
    running = sum(job.state in {"running", "completing"} for job in jobs)
    assert found["slurm_job_run_seconds_count",] == 2
    assert found["slurm_job_wait_seconds_count", "root"] == 2 + running
    assert found["slurm_node_unavailable_seconds_total", "down"] == 30
    assert found["slurm_node_unavailable_seconds_total", "drained"] == 30
    assert found["slurm_jobs", "main", "cancelled"] == 1
    assert found["slurm_nodes", "down"] == 1
    waiting = [job for job in jobs if job.state == "pending"]
    oldest = min(job.submitted for job in waiting)
    assert found["slurm_job_pending_age_seconds_max", "main", "root"] == now + 30 - oldest


def queued(number: int, user: str, waited: float = 0.0) -> QueuedJob:
    state = "running" if waited else "pending"
    return QueuedJob(str(number), state, "gpu", user, 1000.0, 1000.0 + waited if waited else 0.0, 0.0)


def test_a_users_first_wait_is_an_increase() -> None:
    """Zeros stand there for one look before the first count, also for a user whose job started between two looks."""
    ken = [queued(1, "ken", 7200.0)]
    collector = SlurmCollector(
        Seen(Look(1.0, [], {}), *(Look(at, ken, {}) for at in (2.0, 3.0, 4.0))), look_again_s=0.0
    )
    seen = [figures(collector).get(("slurm_job_wait_seconds_count", "ken")) for _ in range(4)]
    assert seen == [None, 0.0, 1.0, 1.0]


def test_waits_reach_thirty_days_and_users_have_a_bound() -> None:
    """A wait of 20 days has a bucket of its own; whoever comes after 200 users is counted with the others."""
    crowd = [queued(number, f"u{number}") for number in range(USERS_MAX + 5)]
    first = Look(1.0, crowd, {})
    then = Look(2.0, [*crowd[:-1], queued(USERS_MAX + 4, f"u{USERS_MAX + 4}", 20 * 86400.0)], {})
    collector = SlurmCollector(Seen(first, then), look_again_s=0.0)
    figures(collector)
    found = figures(collector)
    assert len({key[1] for key in found if key[0] == "slurm_job_wait_seconds_count"}) == USERS_MAX + 1
    assert found["slurm_job_wait_seconds_bucket", OTHERS, "1209600.0"] == 0
    assert found["slurm_job_wait_seconds_bucket", OTHERS, "2592000.0"] == 1
