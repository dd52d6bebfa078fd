"""A full disk is found once, and cleared once there is space again."""

import os

from holdfast.adapters.catalogue_files import read_catalogue
from holdfast.adapters.clock import SystemClock
from holdfast.agent.disk_space import DiskSpace
from holdfast.model.evidence import Domain, EvidenceKind, Remedy


class Watched:
    """A file system and what was told of it at each look."""

    def __init__(self, folder):
        self.told = []
        names = {"node": "node07", "source": "agent:node07"}
        self.disk = DiskSpace(folder, **names, catalogue=read_catalogue(), clock=SystemClock(), report=self.told.append)

    def look(self):
        self.told.clear()
        self.disk.look()
        return list(self.told)


def kinds(events):
    return [type(event).__name__ for event in events]


def test_full_and_well_again_are_each_told_once(tmp_path):
    """The embedded cluster's mark stands for a full file system where none can be mounted."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    look = Watched(folder).look
    assert look() == []
    (tmp_path / "disk_full").touch()
    (seen,) = look()
    finding = seen.finding
    assert (finding.rule, finding.domain, finding.remedy) == ("check.disk_full", Domain.STORAGE, Remedy.NOTIFY)
    assert (finding.place.node, finding.evidence[0].kind) == ("node07", EvidenceKind.CHECK)
    assert look() == []
    (tmp_path / "disk_full").unlink()
    assert kinds(look()) == ["FindingCleared"]
    assert look() == []


def test_what_statvfs_says_counts(tmp_path, monkeypatch):
    """Bytes left to ordinary users, against the least; between full and well nothing changes."""
    real = os.statvfs(tmp_path)
    free = [0]

    def statvfs(path):
        values = list(real)
        values[2], values[4] = 1_000_000, free[0]
        return os.statvfs_result(values)

    monkeypatch.setattr(os, "statvfs", statvfs)
    looked = Watched(tmp_path)
    told = []
    for blocks in (1_000_000, 0, 0, 400, 1_000_000, 0):
        free[0] = blocks
        told.append(kinds(looked.look()))
    assert told == [[], ["FindingSeen"], [], [], ["FindingCleared"], ["FindingSeen"]]


def test_a_missing_folder_is_not_full(tmp_path):
    """A machine without a scratch folder."""
    assert Watched(tmp_path / "none" / "tmp").look() == []
