"""What the Kubernetes lab's keeper does for itself; the lab as a whole is tried by everything that runs on it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

KEEP = """
import os, sys
from pathlib import Path
from holdfast.lab import kube_keeper
kube_keeper.SPARE_BYTES = int(sys.argv[2])
records = Path(sys.argv[1])
records.parent.mkdir(exist_ok=True)
is_kept = kube_keeper.keep_in_memory(records)
records.mkdir(exist_ok=True)
(records / "written").touch()
below = os.spawnlp(os.P_WAIT, "test", "test", "-e", f"{records}/written")
print(is_kept, below)
"""


def kept(records: Path, spare: int) -> list[str]:
    """Whether a process keeps them in memory, and the exit code of another below it that looks for what it wrote."""
    argv = [sys.executable, "-c", KEEP, str(records), str(spare)]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split()


def test_etcds_records_in_memory_go_with_the_lab(tmp_path: Path) -> None:
    """The daemons see them, nobody else does, and nothing is left; who may not mount keeps them on disk."""
    records = tmp_path / "kube" / "etcd"
    is_kept, below = kept(records, 0)
    assert below == "0"
    assert (records / "written").exists() == (is_kept == "False")


def test_a_small_machine_keeps_etcds_records_on_disk(tmp_path: Path) -> None:
    """A lab must not take the memory that its jobs need."""
    records = tmp_path / "kube" / "etcd"
    assert kept(records, 1 << 60) == ["False", "0"]
    assert (records / "written").exists()
