"""Faults injected inside a training process, for drills, without a change to its script.

The launcher of a job that is marked open to drills puts `site_path()` first on PYTHONPATH and sets
`HOLDFAST_DRILL_DIR`; drills write command files (`command`) into that folder. A process without that
environment loads nothing of this. The hook watches the folder every 20 ms (`hook`); the faults are in
`faults` and `faults_torch`.
"""

from pathlib import Path

__all__ = ["site_path"]


def site_path() -> str:
    """The folder to put first on a rank's PYTHONPATH: it holds the `sitecustomize` that installs the hook."""
    return str(Path(__file__).parent / "site")
