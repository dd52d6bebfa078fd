"""What Holdfast does while a part of a real Slurm is away, and what a requeue keeps of a job's wishes. Needs Slurm's packages.

    python benchmarks/slurm_outages.py [outages] [keeps]      (default: both)

`outages`: a job fails while slurmctld, slurmdbd, munge, the space of the shared file system or the controller is away
for 15 s; prints after how many seconds it runs again, and of which moment. Four plain nodes, times of Slurm as it ships;
once more munge, with a SlurmdTimeout of 6 s, so that Slurm has set all nodes DOWN when it is back.
`keeps`: a job with one wish fails and is requeued; prints what `scontrol show job` says of the wish before and after,
and, where a wish names nodes, what becomes of the job when its node has to be left.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from holdfast.errors import LinkError
from holdfast.lab.settings import LabSettings
from holdfast.lab.slurm_lab import SlurmLab
from slurm_fixture import short_folder
from slurm_keeper import TINY, Kept

AWAY_S = 15.0
LIMIT_S = 120.0
ONCE = """#!/bin/bash
#SBATCH --ntasks-per-node=1 --output=job-%j.out
#SBATCH --comment='{"holdfast": {"max_requeues": 3}}'
echo begin
if [ -n "$SLURM_RESTART_COUNT" ]; then exec sleep 1000; fi
while [ ! -e GO ]; do sleep 0.1; done
exit 3
"""
TREE = "SwitchName=top Switches=leaf[1-2]\nSwitchName=leaf1 Nodes=node[01-03]\nSwitchName=leaf2 Nodes=node[04-06]\n"
SITE = "Licenses=matlab:4\nMCSPlugin=mcs/user\nMCSParameters=enforced\nTopologyPlugin=topology/tree"
WISHES = {
    "reservation": (["--reservation=ours"], "Reservation"),
    "node features": (["--constraint=fast"], "Features"),
    "licences": (["--licenses=matlab:1"], "Licenses"),
    "MCS label": ([], "GroupId"),
    "--nodelist": (["--nodelist=node02"], "ReqNodeList"),
    "--contiguous": (["--nodes=2", "--contiguous"], "Contiguous"),
    "topology": (["--nodes=2", "--switches=1"], "NodeList"),
}


@contextmanager
def kept_lab(settings: LabSettings, tree: str = "") -> Iterator[Kept]:
    """A lab and a controller that keeps it."""
    with short_folder() as place, tempfile.TemporaryDirectory() as own:
        if tree:
            (place / "etc").mkdir()
            (place / "etc" / "topology.conf").write_text(tree)
        with SlurmLab.start(settings, place) as lab:
            kept = Kept(lab, Path(own), TINY)
            try:
                kept.start()
                yield kept
            finally:
                kept.end()


def shown(lab: SlurmLab, job: str) -> dict[str, str]:
    """What Slurm says of the job; nothing while slurmctld does not answer."""
    try:
        return lab.job(job)
    except LinkError:
        return {}


def runs_again(lab: SlurmLab, job: str, limit_s: float) -> bool:
    """Wait for its second run, or a later one where Slurm refused that."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        seen = shown(lab, job)
        if seen.get("JobState") == "RUNNING" and int(seen["Restarts"]) >= 1:
            return True
        time.sleep(0.05)
    return False


def submitted(kept: Kept, folder: Path, options: list[str]) -> str:
    """A job that the controller has seen run; it fails when GO stands in its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    job = kept.lab.sbatch(options, script=ONCE, cwd=folder)
    kept.until(lambda: kept.attempts(job) == [0], "it runs")
    return job


Part = tuple[Callable[[], object], Callable[[], object]]
"""How a part goes away, and how it comes back."""


def outages() -> None:
    """One line for each."""
    with kept_lab(LabSettings(nodes=4, boot_s=0.3, dbd=True, shared_mib=64, defaults=True)) as kept:
        lab = kept.lab
        parts: dict[str, Part] = {
            "slurmctld": (lambda: lab.daemons.stop("slurmctld"), lab.daemons.start_ctld),
            "slurmdbd": (lambda: lab.daemons.stop("slurmdbd"), lab.daemons.start_dbd),
            "munge": munge_of(lab),
            "shared file system full": (lab.fill_shared, lab.free_shared),
            "controller": (kept.kill, kept.start),
        }
        for name, part in parts.items():
            outage(kept, name, part)
    with kept_lab(LabSettings(nodes=4, boot_s=0.3, shared_mib=64)) as kept:
        outage(kept, "munge beyond SlurmdTimeout", munge_of(kept.lab))


def munge_of(lab: SlurmLab) -> Part:
    """Munge of all nodes."""
    return (lambda: lab.daemons.stop("munged"), lab.daemons.start_munge)


def outage(kept: Kept, name: str, part: Part) -> None:
    """A job fails while the part is away, for AWAY_S or until the job runs again."""
    lab, (away, back) = kept.lab, part
    folder = lab.folder / "shared" / name.replace(" ", "-")
    job = submitted(kept, folder, [])
    (folder / "GO.soon").touch()
    away()
    failed = time.monotonic()
    (folder / "GO.soon").rename(folder / "GO")
    within = runs_again(lab, job, AWAY_S)
    took = time.monotonic() - failed
    back()
    ended = time.monotonic()
    if within:
        print(f"{name}: runs again {took:.1f} s after its failure, while it is away", flush=True)
    elif runs_again(lab, job, LIMIT_S):
        print(f"{name}: runs again {time.monotonic() - ended:.1f} s after its return", flush=True)
    else:
        print(f"{name}: does not run within {LIMIT_S:g} s of its return: {shown(lab, job)}", flush=True)
    lab.run(["scancel", job])


def leave(lab: SlurmLab, job: str, name: str, field: str) -> None:
    """The job has to leave its first node: what becomes of it. By Holdfast's commands: hold, exclude, release."""
    bad = lab.run(["scontrol", "show", "hostnames", lab.job(job)["NodeList"]]).split()[0]
    lab.run(["scontrol", "requeuehold", job])
    lab.until_job(job, "PENDING", "REQUEUE_HOLD", "SPECIAL_EXIT")
    lab.run(["scontrol", "update", f"JobId={job}", f"ExcNodeList={bad}"])
    lab.run(["scontrol", "release", job])
    lab.run(["scontrol", "update", f"JobId={job}", "StartTime=now+2"])
    deadline = time.monotonic() + AWAY_S
    while shown(lab, job).get("JobState") != "RUNNING" and time.monotonic() < deadline:
        time.sleep(0.1)
    seen = lab.job(job)
    words = f"{seen['JobState']} ({seen['Reason']}) on {seen['NodeList']}, ExcNodeList={seen['ExcNodeList']}"
    print(f"{name}, {bad} has to be left: {words}; {field}={seen.get(field)}", flush=True)


def keeps() -> None:
    """One line for each wish, and one for each whose node is lost to it."""
    with kept_lab(LabSettings(nodes=6, boot_s=0.3, extra_conf=SITE), TREE) as kept:
        lab = kept.lab
        lab.run(["scontrol", "update", "NodeName=node[01-03]", "Features=fast"])
        lab.run(
            ["scontrol", "create", "ReservationName=ours", "Users=root", "Nodes=node05", "StartTime=now", "Duration=60"]
        )
        for number, (name, (options, field)) in enumerate(WISHES.items()):
            folder = lab.folder / "jobs" / f"wish{number}"
            job = submitted(kept, folder, options)
            before = lab.job(job)
            (folder / "GO").touch()
            again = runs_again(lab, job, LIMIT_S)
            after = lab.job(job)
            said = f"{before.get(field)} -> {after.get(field)} on {before['NodeList']} -> {after['NodeList']}"
            print(f"{name}: {said}{'' if again else ' DOES NOT RUN: ' + after['Reason']}", flush=True)
            lab.run(["scancel", job])
            if name in {"--nodelist", "--contiguous", "reservation", "topology"}:
                other = lab.sbatch([*options, "--output=/dev/null", "--wrap", "sleep 1000"])
                lab.until_job(other, "RUNNING")
                leave(lab, other, name, field)
                lab.run(["scancel", other])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=["outages", "keeps", []], default=[])
    wanted = parser.parse_args().parts or ["outages", "keeps"]
    if "outages" in wanted:
        outages()
    if "keeps" in wanted:
        keeps()
