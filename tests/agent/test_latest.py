"""The file that a Prolog reads in place of making checks: whose boot, how old, and each problem."""

from pathlib import Path
from unittest.mock import Mock

from holdfast.adapters.probes.check import Status
from holdfast.adapters.probes.rounds import Verdict, uptime_s
from holdfast.agent import latest as latest_of
from holdfast.agent.latest import LatestChecks

WELL = Verdict(check="cpu", status=Status.OK)
BAD = Verdict(check="gpu-ecc", status=Status.CRITICAL, detail="2 errors\nCRITICAL: gone")
HUNG = Verdict(check="mounts", status=Status.UNKNOWN, detail="no answer", hung=True)


def test_it_is_of_this_boot_and_names_each_problem_on_a_line(tmp_path):
    """What is well is left out; a text that brings a line of its own begins none."""
    before = int(uptime_s())
    latest = LatestChecks(tmp_path)
    latest.expect({"nvml": 15.0})
    latest.write("nvml", [WELL, BAD, HUNG])
    first, *lines = (tmp_path / "latest").read_text().splitlines()
    head, _, at = first.rpartition(" ")
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert (head, before <= int(at) <= uptime_s()) == (f"holdfast 1 {boot}", True)
    assert [line.split()[:2] for line in lines] == [["CRITICAL", "gpu-ecc"], ["UNKNOWN", "mounts"]]
    assert (tmp_path / "latest").stat().st_mode & 0o777 == 0o600


def test_nothing_is_written_before_every_source_was_looked_at(tmp_path):
    """An agent that has just started knows half of the node: the result of before stands, and grows old."""
    latest = LatestChecks(tmp_path)
    latest.expect({"nvml": 15.0, "mounts": 300.0})
    latest.write("nvml", [WELL])
    assert not (tmp_path / "latest").exists()
    latest.write("mounts", [WELL])
    assert (tmp_path / "latest").exists()


def test_a_full_disk_stops_no_look(tmp_path):
    """The one before grows too old to be read."""
    latest = LatestChecks(tmp_path / "gone")
    latest.expect({"nvml": 15.0})
    latest.write("nvml", [WELL])


def test_a_source_that_is_looked_at_no_more_has_the_result_grow_old(tmp_path, monkeypatch):
    """The looks at the others go on; one that is rare is no older than it should be."""
    uptime_s = Mock(return_value=1000.0)
    monkeypatch.setattr(latest_of, "uptime_s", uptime_s)
    monkeypatch.setattr(latest_of, "current_boot_id", read := Mock(return_value="boot"))
    latest = LatestChecks(tmp_path)
    latest.expect({"nvml": 15.0, "mounts": 15.0, "fabric": 300.0})
    for source in ("nvml", "mounts", "fabric"):
        latest.write(source, [WELL])
    told = []
    for uptime_s.return_value in (1015.0, 1030.0, 1300.0):
        latest.write("nvml", [WELL])
        told.append((tmp_path / "latest").read_text().split()[-1])
    assert told == ["1015", "1015", "1015"]
    latest.write("mounts", [WELL])
    assert (tmp_path / "latest").read_text() == "holdfast 1 boot 1300\n"
    assert read.call_count == 1
