"""`holdfast run` on a job folder that cannot be used: it ends in seconds, or goes on, and always obeys signals."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.launch.conftest import Launched, marked, wait_for
from tests.launch.test_step_cancel import supervise

pytestmark = pytest.mark.cluster

END_S = 60.0
"""Of a loaded machine; the launcher itself waits for 3 s."""
FIX = "free space there, make it writable or mount it again, or name another one with --job-dir"
RANK = """
import os, sys, time
from pathlib import Path
go = Path(os.environ["GO"])
while not go.exists():
    time.sleep(0.02)
what = go.read_text()
if what == "raise":
    raise OSError(28, "No space left on device")
sys.exit(int(what))
"""


STORED = """
import os, sqlite3, sys
journal = sqlite3.connect("file:" + os.environ["HOLDFAST_JOB_DIR"] + "/journal.db?mode=ro", uri=True)
sys.exit(not journal.execute("SELECT count(*) FROM events WHERE kind = 'attempt_started'").fetchone()[0])
"""
"""Ends well once the launcher's journal is open and holds the attempt's begin."""


class Small:
    """Folders that can be filled up: small file systems where root may mount them, else a limit of the file size."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.mounted: list[Path] = []

    def folder(self, name: str, size: str) -> Path:
        folder = self.root / name
        folder.mkdir()
        argv = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]
        if os.geteuid() == 0 and not subprocess.run(argv, capture_output=True).returncode:
            self.mounted.append(folder)
        return folder

    def fill(self, run: Launched) -> None:
        """Take all space that is left."""
        if run.job_dir not in self.mounted:
            limit_files(run)
            return
        with contextlib.suppress(OSError), (run.job_dir / "ballast").open("ab", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)


def limit_files(run: Launched) -> None:
    """Let the launcher's journal not grow any more, as a quota does."""
    journal = run.job_dir / "journal.db-wal"
    size = journal.stat().st_size if journal.exists() else 4096
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(run.popen.pid, resource.RLIMIT_FSIZE, (size, size))


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Small]:
    made = Small(tmp_path)
    yield made
    for folder in made.mounted:
        subprocess.run(["umount", "-l", folder], check=True)


def begin(launched, tmp_path: Path, folder: Path) -> tuple[Launched, Path]:
    """Two ranks that wait for the file `go-NAME` beside the folder NAME."""
    (tmp_path / "rank.py").write_text(RANK)
    go = tmp_path / f"go-{folder.name}"
    run = launched("--nproc-per-node", "2", "--standbys", "0", "rank.py", job_dir=folder, env={"GO": str(go)})
    return run, go


def tell(go: Path, what: str) -> None:
    fresh = go.with_suffix(".new")
    fresh.write_text(what)
    fresh.replace(go)


def last_line(run: Launched) -> str:
    return run.text().strip().splitlines()[-1]


def test_a_folder_that_cannot_be_used_any_more_never_holds_the_launcher(launched, small, tmp_path: Path):
    """Full, at its quota, taken away, while ranks run: they go on; a good end is 0, a fault 86, and signals end it."""
    names = ("good", "fault", "term", "waits", "quota", "lost")
    runs = {name: begin(launched, tmp_path, small.folder(name, "2m")) for name in names[:4]}
    runs |= {name: begin(launched, tmp_path, tmp_path / name) for name in names[4:]}
    for name, (run, go) in runs.items():
        run.wait_event("attempt_started")
        if name == "lost":
            shutil.move(run.job_dir, tmp_path / "elsewhere")
        elif name == "quota":
            limit_files(run)
        else:
            small.fill(run)
        if name in {"fault", "quota", "waits"}:
            tell(go, "raise")
    term, waits, good = (runs[name][0] for name in ("term", "waits", "good"))
    wait_for("a rank has ended", lambda: "ended with exit code 1" in waits.text())
    waits.popen.send_signal(signal.SIGINT)
    term.popen.send_signal(signal.SIGTERM)
    tell(runs["good"][1], "0")
    since = time.monotonic()
    codes = {name: run.wait(END_S) for name, (run, _) in runs.items()}
    assert codes.pop("waits") in {1, 130, 86}  # by the rank, by the signal; a loaded machine may have given it up
    assert codes == {"good": 0, "fault": 86, "term": 143, "quota": 86, "lost": 86}
    assert time.monotonic() - since < END_S
    assert "giving up" not in good.text()
    for name in ("fault", "quota", "lost"):
        run = runs[name][0]
        assert last_line(run).startswith("[holdfast] giving up with exit code 86: ")
        assert f"the job's folder {run.job_dir} cannot be used (" in last_line(run)
        assert last_line(run).endswith(FIX)
    wait_for("nothing is left", lambda: not marked(term.mark))


@pytest.mark.parametrize(("size", "options"), [("4k", ""), ("100k", ""), ("2m", "ro")])
def test_a_folder_without_room_is_told_before_or_right_after_the_start(launched, small, tmp_path, size, options):
    """Full or read-only from the start: exit code 86 in seconds, the folder and the fix, no rank is left."""
    folder = small.folder("job", size)
    if not small.mounted:
        pytest.skip("this user may not mount a small file system")
    if options:
        subprocess.run(["mount", "-o", f"remount,{options}", folder], check=True)
    run, _ = begin(launched, tmp_path, folder)
    assert run.wait(END_S) == 86
    assert f"the job's folder {folder} cannot be used (" in last_line(run)
    assert last_line(run).endswith(FIX)
    assert "Traceback" not in run.text()
    assert not marked(run.mark)


def test_a_supervised_step_keeps_to_it_too(small, tmp_path: Path):
    """`holdfast srun`: full from the start it says so and leaves; filled while the step runs, srun's own code counts."""
    full, later = small.folder("full", "8k"), small.folder("later", "2m")
    if not small.mounted:
        pytest.skip("this user may not mount a small file system")
    (tmp_path / "stored.py").write_text(STORED)
    until = f"until {sys.executable} {tmp_path}/stored.py 2>/dev/null; do sleep 0.1; done"
    begun = time.monotonic()
    with ThreadPoolExecutor() as both:
        at_once = both.submit(supervise, full, ["sleep 60"])
        done = both.submit(supervise, later, [until, "cat /dev/zero > ballast", "exit 3"]).result()
    assert at_once.result().returncode == 86
    assert FIX in at_once.result().stderr
    assert done.returncode == 3
    assert "not run again: " in done.stderr
    assert FIX in done.stderr.splitlines()[-1]
    assert time.monotonic() - begun < 2 * END_S
    assert "Traceback" not in done.stderr


def strike(launched, tmp_path: Path, small: Small, seed: int) -> None:
    """One run whose folder fills up and whose launcher is told to end, each at a moment of the seed's."""
    dice = random.Random(seed)
    run, go = begin(launched, tmp_path, small.folder(f"job-{seed}", dice.choice(["300k", "600k", "2m"])))
    signum, end = dice.choice([signal.SIGTERM, signal.SIGINT]), dice.choice(["raise", "0", "85"])
    moments = [
        (dice.uniform(0.1, 4.0), lambda: run.popen.send_signal(signum)),
        (dice.uniform(0.0, 4.0), lambda: tell(go, end)),
        (dice.uniform(0.0, 6.0), lambda: small.fill(run)),
    ]
    begun = time.monotonic()
    for moment, act in sorted(moments, key=lambda one: one[0]):
        time.sleep(max(0.0, begun + moment - time.monotonic()))
        act()
    code = run.wait(END_S)
    ends = {0, 1, 85, 86, 128 + signum, -signum}
    assert code in ends, (seed, code, run.text()[-2000:])
    assert "Traceback" not in "".join(line for line in run.text().splitlines() if not line.startswith("[rank")), seed
    wait_for(f"seed {seed}: nothing is left", lambda: not marked(run.mark))


@pytest.mark.parametrize("seed", [181])
def test_a_signal_at_any_moment_ends_it(launched, small, tmp_path: Path, seed: int):
    """One of the soak test's runs."""
    strike(launched, tmp_path, small, seed)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_signals_and_full_folders_at_random_moments(launched, small, tmp_path: Path):
    """HOLDFAST_SOAK_RUNS runs, seeded."""
    for seed in range(int(os.environ.get("HOLDFAST_SOAK_RUNS", "60"))):
        strike(launched, tmp_path, small, seed)
