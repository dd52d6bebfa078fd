"""`holdfast run` on one machine, as users start it: real launchers, real ranks, real faults."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from tests.launch.conftest import alive, counter, environ_of, marked, wait_for

from holdfast.telemetry.slot import read_slot

pytestmark = pytest.mark.cluster


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def watched_by(pid: int) -> set[int]:
    """Processes for whose end this one holds a pidfd."""
    found = set()
    for info in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(OSError):
            found |= {int(line.split()[1]) for line in info.read_text().splitlines() if line.startswith("Pid:")}
    return found


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def script(tmp_path: Path, text: str, name: str = "train.py") -> str:
    (tmp_path / name).write_text(text)
    return name


def losses(path: Path) -> dict[int, float]:
    """The last word on each step."""
    return {line["step"]: line["loss"] for line in map(json.loads, path.read_text().splitlines())}


def test_of_launchers_that_start_at_once_on_one_folder_one_trains(launched, tmp_path: Path):
    """Each wants the next epoch, and one gets it: the others leave the job to it, and its judgement too."""
    args = ("--nproc-per-node", "1", *counter(tmp_path, steps=100))
    runs = [launched(*args) for _ in range(4)]
    assert sorted(run.wait(60) for run in runs) == [0, 69, 69, 69]
    epochs = [event.epoch for event in runs[0].events("attempt_started")]
    assert len(epochs) == len(set(epochs))
    said = re.findall(r"attempt \d+ \(epoch (\d+)\):", "".join(run.text() for run in runs))
    assert len(said) == len(set(said))


def test_a_killed_rank_brings_the_job_back_in_place(launched, tmp_path: Path):
    """Signal 11: seen at once, restarted from the durable checkpoint by warm standbys, same losses, exit code 0."""
    run = launched("--nproc-per-node", "2", *counter(tmp_path, "--loss-log", str(tmp_path / "loss"), steps=400))
    run.wait_event("checkpoint_saved", lambda event: event.durable and event.step >= 20)
    wait_for(
        "standbys",
        lambda: sum("standby_main.py" in command_of(pid) for pid in marked(run.mark)) == 2,
    )
    os.kill(run.rank_pid(1, attempt=0), signal.SIGSEGV)
    started = run.wait_event("attempt_started", lambda event: event.attempt == 1)
    assert (started.epoch, started.in_place, started.standby, started.ranks) == (2, 1, True, 2)
    first = run.wait_event("first_step_done", lambda event: event.attempt == 1)
    assert first.step == first.resumed_from + 1 > 20
    assert run.wait() == 0
    finding = run.events("finding_seen")[0].finding
    assert (finding.rule, finding.place.rank, finding.role) == ("exit.signal.11", 1, "root")
    assert run.events("attempt_ended")[0].signal == 11
    assert run.events("attempt_ended")[-1].exit_code == 0
    undisturbed = launched(
        "--nproc-per-node",
        "2",
        *counter(tmp_path / "b", "--loss-log", str(tmp_path / "loss2"), steps=400, step_s=0.001),
        job_dir=tmp_path / "job2",
    )
    assert undisturbed.wait() == 0
    assert losses(tmp_path / "loss") == losses(tmp_path / "loss2")


def test_what_it_recovered_from_is_not_why_it_ends(launched, tmp_path: Path):
    """Stopped by its owner after a proven recovery: the last line tells of the request, not of the old fault."""
    run = launched("--nproc-per-node", "2", *counter(tmp_path, steps=100_000))
    run.wait_event("checkpoint_saved", lambda event: event.durable)
    os.kill(run.rank_pid(1, attempt=0), signal.SIGSEGV)
    run.wait_event("checkpoint_saved", lambda event: event.durable and event.attempt == 1)
    run.popen.send_signal(signal.SIGTERM)
    assert run.wait() == 143
    last = run.text().strip().splitlines()[-1]
    assert "ended on request" in last
    assert "signal 11" not in last


def test_every_attempt_keeps_its_logs(launched, tmp_path: Path):
    """One folder per attempt, one file per rank with both streams, never truncated; rank 0's is repeated."""
    name = script(tmp_path, "import os, sys, time\n"
        "print('out', os.environ['RANK'], os.environ['HOLDFAST_ATTEMPT'])\nprint('err', file=sys.stderr)\n"
        "sys.exit(0 if os.environ['HOLDFAST_ATTEMPT'] == '1' else 3)\n")  # fmt: skip
    earlier = tmp_path / "job" / "logs" / "attempt-0" / "rank-00000.log"
    earlier.parent.mkdir(parents=True)
    earlier.write_text("kept\n")
    run = launched("--nproc-per-node", "2", "--standbys", "0", name)
    assert run.wait() == 0
    logs = run.job_dir / "logs"
    assert (logs / "attempt-0" / "rank-00000.log").read_text() == "kept\nout 0 0\nerr\n"
    assert (logs / "attempt-1" / "rank-00001.log").read_text() == "out 1 1\nerr\n"
    assert (
        "attempt 1 (epoch 2)"
        in (logs / "attempt-1" / f"launcher-{os.uname().nodename.partition('.')[0]}.log").read_text()
    )
    assert "[rank0]: out 0 1\n" in run.text()
    assert "[rank1]" not in run.text()


def test_a_crash_loop_is_given_up_with_its_reason(launched, tmp_path: Path):
    """The same exception twice without progress: exit code 86, the user's line, and where the story is."""
    name = script(
        tmp_path,
        "import os\nif os.environ['RANK'] == '1':\n    raise ValueError('bad shape 17')\nimport time; time.sleep(30)\n",
    )
    run = launched("--nproc-per-node", "2", "--standbys", "0", name)
    assert run.wait() == 86
    last = run.text().strip().splitlines()[-1]
    assert last.startswith("[holdfast] giving up with exit code 86")
    assert last.count("ValueError: bad shape 17") == 1
    assert "train.py:3" in last
    story = Path(last.partition("(story: ")[2].rstrip(")"))
    assert "bad shape 17" in story.read_text()
    assert [event.attempt for event in run.events("attempt_started")] == [0, 1]


@pytest.mark.parametrize(("body", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)])
def test_a_commands_own_exit_code_comes_through(launched, body: str, code: int):
    """Without restarts `holdfast run` is transparent; signals are told as a shell tells them."""
    run = launched("--max-restarts", "0", "--", "bash", "-c", f"echo from below; {body}")
    assert run.wait() == code
    assert run.text().startswith("[holdfast] attempt 0")
    assert "from below\n" in run.text()


def test_one_failed_rank_ends_the_others_without_restarts(launched, tmp_path: Path):
    """As torchrun --max-restarts 0: nobody waits for the dead."""
    name = script(tmp_path, "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(5)\ntime.sleep(60)\n")
    run = launched("--nproc-per-node", "3", "--max-restarts", "0", "--stop-grace-s", "1", name)
    assert run.wait(20) == 5


def test_a_rank_may_end_before_the_others(launched, tmp_path: Path):
    """Exit code 0 of one rank is no fault."""
    name = script(tmp_path, "import os, time\ntime.sleep(0.1 + 0.4 * int(os.environ['RANK']))\n")
    run = launched("--nproc-per-node", "2", name)
    assert run.wait() == 0
    assert run.events("finding_seen") == []


def test_exit_code_85_means_start_me_again(launched, tmp_path: Path):
    """Saved and stopped on its own wish: nothing is wrong, the launcher says 85 as well."""
    run = launched("--nproc-per-node", "2", script(tmp_path, "import sys\nsys.exit(85)\n"))
    assert run.wait() == 85
    assert run.events("finding_seen") == []


def test_ranks_get_torchruns_environment(launched, tmp_path: Path):
    """Every variable of torchrun's table, and Holdfast's own."""
    name = script(
        tmp_path,
        "import json, os, sys\njson.dump(dict(os.environ), open('env' + os.environ['RANK'], 'w'))\nprint(sys.argv)\n",
    )
    run = launched("--nproc-per-node", "2", name, "--lr", "3", "--", "-x")
    assert run.wait() == 0
    env = json.loads((tmp_path / "env1").read_text())
    wanted = {
        "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1", "ROLE_RANK": "1", "ROLE_WORLD_SIZE": "2", "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_RUN_ID": "job",
        "TORCHELASTIC_MAX_RESTARTS": "3", "OMP_NUM_THREADS": "1", "HOLDFAST_ATTEMPT": "0", "HOLDFAST_EPOCH": "1",
        "HOLDFAST_JOB_DIR": str(run.job_dir),
    }  # fmt: skip
    assert {key: env.get(key) for key in wanted} == wanted
    assert int(env["MASTER_PORT"]) > 1024
    assert env["TORCHELASTIC_ERROR_FILE"].endswith(".json")
    assert "HOLDFAST_DRILL_DIR" not in env
    assert "['train.py', '--lr', '3', '--', '-x']" in run.text()


def test_a_terminated_launcher_ends_its_ranks_orderly(launched, tmp_path: Path):
    """SIGTERM is passed on; the ranks' own exit code is the launcher's; nothing is restarted."""
    name = script(tmp_path, "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\nprint('ready', flush=True)\ntime.sleep(60)\n")  # fmt: skip
    run = launched("--nproc-per-node", "2", "--tee", "all", name)
    wait_for("ranks", lambda: run.text().count("ready") == 2)
    run.popen.send_signal(signal.SIGTERM)
    assert run.wait(10) == 9
    assert run.events("finding_seen") == []
    assert len(run.events("attempt_started")) == 1


def test_ranks_that_are_terminated_before_their_launcher_are_no_fault(launched, tmp_path: Path):
    """`scancel` sends SIGTERM to every process of the job: a rank may be dead before the launcher gets its own."""
    run = launched(
        "--nproc-per-node",
        "2",
        "--tee",
        "all",
        script(tmp_path, "import os, time\nprint('ready', os.getpid(), flush=True)\ntime.sleep(60)\n"),
    )
    wait_for("ranks", lambda: run.text().count("ready") == 2)
    ranks = [int(pid) for pid in re.findall(r"ready (\d+)", run.text())]
    for pid in ranks:
        os.kill(pid, signal.SIGTERM)
    wait_for("their end", lambda: not any(map(alive, ranks)))
    run.popen.send_signal(signal.SIGTERM)
    assert run.wait(10) == 128 + signal.SIGTERM
    assert run.events("finding_seen") == []
    assert len(run.events("attempt_started")) == 1


def test_a_rank_that_is_terminated_alone_is_restarted(launched, tmp_path: Path):
    """SIGTERM to a rank only, from whoever, is a fault like any other."""
    run = launched("--nproc-per-node", "2", *counter(tmp_path))
    os.kill(run.rank_pid(1, 0), signal.SIGTERM)
    assert run.wait() == 0
    assert run.events("finding_seen")[0].finding.rule == "exit.signal.15"
    assert len(run.events("attempt_started")) == 2


def test_user_signals_are_passed_on(launched, tmp_path: Path):
    """SIGUSR1 and SIGUSR2 reach the ranks, as --signal=USR1@90 of Slurm expects."""
    name = script(tmp_path, "import signal, sys, time\nseen = []\n"
        "for s in (signal.SIGUSR1, signal.SIGUSR2): signal.signal(s, lambda n, f: seen.append(n))\n"
        "print('ready', flush=True)\n"
        "while len(seen) < 2: time.sleep(0.01)\nsys.exit(0)\n")  # fmt: skip
    run = launched("--nproc-per-node", "2", "--tee", "all", name)
    wait_for("ranks", lambda: run.text().count("ready") == 2)
    run.popen.send_signal(signal.SIGUSR1)
    run.popen.send_signal(signal.SIGUSR2)
    assert run.wait(10) == 0


def test_a_second_interrupt_kills(launched, tmp_path: Path):
    """Ranks that ignore the first Ctrl-C do not survive the second."""
    name = script(
        tmp_path,
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('ready', flush=True)\ntime.sleep(60)\n",
    )
    run = launched(name)
    wait_for("rank", lambda: "ready" in run.text())
    run.popen.send_signal(signal.SIGINT)
    wait_for("first signal taken", lambda: run.popen.poll() is None)
    import time

    time.sleep(0.3)
    assert run.popen.poll() is None
    run.popen.send_signal(signal.SIGINT)
    assert run.wait(10) == 130


def test_a_killed_launcher_leaves_nothing(launched, tmp_path: Path):
    """kill -9 of the launcher: ranks, what they started in sessions of their own, standbys and guard are gone."""
    name = script(tmp_path, "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)\n"
        "print('ready', flush=True)\ntime.sleep(60)\n")  # fmt: skip
    run = launched("--nproc-per-node", "2", "--tee", "all", name)
    wait_for("ranks", lambda: run.text().count("ready") == 2)
    assert len(marked(run.mark)) == 6
    run.popen.kill()
    run.popen.wait()
    wait_for("nothing left", lambda: not marked(run.mark), 5.0)


def test_a_launcher_started_again_goes_on_with_the_job(launched, tmp_path: Path):
    """A requeue gives a new launcher: attempt numbers, epochs and checkpoints go on; the killed one's end is told."""
    env = {"HOLDFAST_JOB_ID": "77"}
    first = launched("--nproc-per-node", "2", *counter(tmp_path, steps=300), env=env)
    first.wait_event("checkpoint_saved", lambda event: event.durable)
    first.popen.kill()
    first.popen.wait()
    again = launched("--nproc-per-node", "2", *counter(tmp_path, steps=300), env={**env, "HOLDFAST_RESTART_COUNT": "1"})
    assert again.wait() == 0
    started = again.events("attempt_started")
    assert [(event.attempt, event.epoch, event.restart_count) for event in started] == [(0, 1, 0), (1, 2, 1)]
    assert (again.job_dir / "epoch").read_text() == "2\n"
    assert again.events("first_step_done")[-1].resumed_from >= 10


def test_a_stuck_rank_is_named_and_the_job_restarted(launched, tmp_path: Path):
    """SIGSTOP of one rank: within three steps and two seconds a finding, stacks name the rank, then a restart."""
    run = launched("--nproc-per-node", "3", *counter(tmp_path, steps=400, step_s=0.05))
    run.wait_event("checkpoint_saved", lambda event: event.durable and event.step >= 20)
    pid = run.rank_pid(2, attempt=0)
    import time

    stopped_at = time.time()
    os.kill(pid, signal.SIGSTOP)
    found = run.wait_event("finding_seen", lambda event: event.finding.rule.startswith("hang."))
    assert found.finding.at - stopped_at < 3 * 0.05 + 2.0
    captured = run.wait_event("stacks_captured")
    assert captured.odd_ranks == (2,)
    assert captured.silent_ranks == captured.stopped_ranks == (2,)
    assert captured.at - found.finding.at < 1.5
    assert any("receive (" in frame for group in captured.groups for frame in group.frames), str(captured.groups)
    run.wait_event("attempt_started", lambda event: event.attempt == 1)
    assert not alive(pid)
    run.wait_event("first_step_done", lambda event: event.attempt == 1)


def test_a_drill_kills_a_rank_at_its_step(launched, tmp_path: Path):
    """kill_signal from the drill folder, once: its fired mark is there before the rank dies."""
    from holdfast.failpoint.command import FaultCommand, command_name, encode, fired_name

    run = launched("--nproc-per-node", "2", *counter(tmp_path, steps=400), env={"HOLDFAST_DRILL_OK": "1"})
    folder = run.job_dir / "drill"
    wait_for("drill folder", folder.is_dir)
    command = FaultCommand(id="d1", kind="kill_signal", ranks=(1,), at_step=30, params={"signal": 11})
    (folder / ".d1").write_text(encode(command))
    (folder / ".d1").rename(folder / command_name("d1"))
    found = run.wait_event("finding_seen", lambda event: event.finding.rule == "exit.signal.11")
    mark = json.loads((folder / fired_name("d1", 1)).read_text())
    assert mark["step"] >= 30
    assert 0 <= found.finding.at - mark["at"] < 0.5
    assert run.wait() == 0
    assert len([event for event in run.events("finding_seen") if event.finding.rule == "exit.signal.11"]) == 1


def test_a_drill_reaches_a_rank_that_was_a_standby(launched, tmp_path: Path):
    """The hook is loaded with the standby and obeys once it is a rank."""
    from holdfast.failpoint.command import FaultCommand, command_name, encode

    run = launched("--nproc-per-node", "1", *counter(tmp_path, steps=400), env={"HOLDFAST_DRILL_OK": "1"})
    run.wait_event("first_step_done")
    wait_for("standby", lambda: any("standby_main.py" in command_of(pid) for pid in marked(run.mark)))
    folder = run.job_dir / "drill"
    for command in (
        FaultCommand(id="k", kind="kill9", ranks=(0,), attempt=0),
        FaultCommand(id="x", kind="exception", ranks=(0,), attempt=1, at_step=5, params={"message": "drilled"}),
    ):
        (folder / f".{command.id}").write_text(encode(command))
        (folder / f".{command.id}").rename(folder / command_name(command.id))
    started = run.wait_event("attempt_started", lambda event: event.attempt == 1)
    assert started.standby
    found = run.wait_event("finding_seen", lambda event: event.finding.rule.startswith("python."))
    assert "drilled" in found.finding.summary
    assert found.finding.attempt == 1


def test_ranks_below_a_command_are_found_and_their_deaths_seen(launched, tmp_path: Path):
    """`-- CMD` with ranks of its own: a rank's death is told with its signal before the command itself notices."""
    rank = tmp_path / "rank.py"
    rank.write_text(
        "import os, time\nfrom holdfast import telemetry\n"
        "for step in range(1, 2000):\n    with telemetry.step(step): time.sleep(0.02)\n"
    )
    boss = tmp_path / "boss.py"
    boss.write_text(
        "import os, subprocess, sys, time\n"
        "ps = [subprocess.Popen([sys.executable, 'rank.py'], env={**os.environ, 'RANK': str(r), 'LOCAL_RANK': str(r), 'WORLD_SIZE': '2'}) for r in range(2)]\n"
        "while True: time.sleep(60)\n"
    )
    run = launched("--", sys.executable, str(boss))
    run.wait_event("first_step_done")
    pid = run.rank_pid(1, attempt=0)
    assert environ_of(pid)["PET_NNODES"] == "1"
    wait_for("the launcher's watch over the rank", lambda: pid in watched_by(parent_of(parent_of(pid))))
    os.kill(pid, signal.SIGSEGV)
    found = run.wait_event("finding_seen", lambda event: event.finding.rule == "exit.signal.11")
    assert found.finding.place.rank == 1
    again = run.wait_event("attempt_started", lambda event: event.attempt == 1)
    assert again.in_place == 1
    wait_for("ranks of the new attempt", lambda: run.rank_pid(0, attempt=1) != pid)


def test_a_rank_whose_parent_took_leave_of_it_first_is_not_a_fault(launched, tmp_path: Path):
    """Below a command nobody but the rank's parent may know how it ended: a command that ended with 0 has said so."""
    boss = tmp_path / "boss.py"
    boss.write_text(
        "import os, subprocess, sys\n"
        "rank = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE, env={**os.environ, 'RANK': '0', 'LOCAL_RANK': '0'})\n"
        "with open('pids.new', 'w') as file: file.write(f'{os.getppid()} {os.getpid()} {rank.pid}')\n"
        "os.rename('pids.new', 'pids')\n"
        "sys.stdin = os.fdopen(os.open('go', os.O_RDONLY))\n"
        "sys.stdin.read()\n"
        "rank.communicate(b'\\n')\n"
    )
    os.mkfifo(tmp_path / "go")
    run = launched("--", sys.executable, str(boss))
    wait_for("the ranks", (tmp_path / "pids").exists)
    launcher, command, rank = map(int, (tmp_path / "pids").read_text().split())
    wait_for("the launcher's watch over the rank", lambda: rank in watched_by(launcher))
    os.kill(launcher, signal.SIGSTOP)  # as on a busy machine: it looks only when all is over
    try:
        (tmp_path / "go").write_bytes(b"")
        wait_for("the end of the command", lambda: not alive(command))
    finally:
        os.kill(launcher, signal.SIGCONT)
    assert run.wait() == 0
    assert [(event.attempt, event.exit_code, event.signal) for event in run.events("attempt_ended")] == [(0, 0, None)]
    assert run.events("finding_seen") == []


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("no_such.py",), "no_such.py: no such script"),
        (("--nproc-per-node", "many", "train.py"), "give a number from 1, `cpu`, `gpu` or `auto`"),
        (("--tee", "x", "train.py"), "--tee 'x'"),
        (("--nnodes", "3", "train.py"), "--nnodes 3: this allocation has 1"),
        (("--policy", "no.toml", "train.py"), "no.toml"),
    ],
)
def test_bad_input_is_one_sentence(launched, tmp_path: Path, args: tuple[str, ...], says: str):
    """What is wrong and what to do, no traceback, nothing started."""
    script(tmp_path, "")
    run = launched(*args)
    assert run.wait() in {2, 78}
    assert says in run.text()
    assert "Traceback" not in run.text()


def test_nothing_is_left_in_memory_folders(launched, tmp_path: Path):
    """Without a node folder the slots live in /dev/shm, and are deleted at the end."""
    name = script(
        tmp_path,
        "import os\nprint(os.environ['HOLDFAST_TELEMETRY_DIR'], os.path.isdir(os.environ['HOLDFAST_TELEMETRY_DIR']))\n",
    )
    run = launched(name, env={"HOLDFAST_NODE_DIR": ""})
    assert run.wait() == 0
    folder, is_there = run.text().partition("[rank0]: ")[2].split()[:2]
    assert (folder.startswith("/dev/shm/"), is_there) == (True, "True")
    assert not Path(folder).parent.exists()


def test_slots_tell_their_attempt(launched, tmp_path: Path):
    """The slot of the embedded node's folder, where its agent looks, names attempt and epoch."""
    run = launched("--nproc-per-node", "1", *counter(tmp_path, steps=5))
    assert run.wait() == 0
    (slot,) = (tmp_path / "nodes" / "solo" / "telemetry" / "job" / "a0").glob("rank-*.slot")
    assert (read_slot(slot).attempt, read_slot(slot).epoch, read_slot(slot).step_ended) == (0, 1, 5)


@pytest.mark.parametrize("name", ["ranks", "command"])
def test_where_policy_says_observe_the_job_ends_by_itself(launched, tmp_path: Path, name: str):
    """By holdfast.toml: no restart in place, the rank's own exit code; the fault is diagnosed, told and written down."""
    (tmp_path / "site.toml").write_text('mode = "observe"\n')
    (tmp_path / "holdfast.toml").write_text('policy = "site.toml"\n')
    script(
        tmp_path,
        "import os, sys, time\nif os.environ.get('RANK', '1') == '1':\n    raise SystemExit(9)\ntime.sleep(60)\n",
    )
    what = ["--nproc-per-node", "2", "train.py"] if name == "ranks" else ["--", sys.executable, "train.py"]
    run = launched("--standbys", "0", "--stop-grace-s", "2", *what)
    assert run.wait() == 9
    assert [event.attempt for event in run.events("attempt_started")] == [0]
    assert [(event.exit_code, event.stopped) for event in run.events("attempt_ended")] == [(9, False)]
    assert "exit code 9" in (run.job_dir / "story.txt").read_text()
    assert "exit code 9" in run.text()
    if name == "ranks":
        return
    # Who asks for more by name gets it.
    (tmp_path / "mine.toml").write_text('mode = "act"\n')
    again = launched("--standbys", "0", "--policy", str(tmp_path / "mine.toml"), *what, job_dir=tmp_path / "act")
    assert again.wait() == 86
    assert [event.attempt for event in again.events("attempt_started")] == [0, 1]
