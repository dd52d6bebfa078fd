"""`holdfast explain` over several files, compressed ones, folders, standard input; kernel logs of other clocks beside."""

import bz2
import contextlib
import gzip
import json
import lzma
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
import zstandard

from holdfast.adapters.log_files import find_logs, line_numbers, read_chunks
from holdfast.cli.explain import explain_logs
from holdfast.detect.hyperpod_rules import log_rules
from holdfast.detect.reading import source_of
from holdfast.errors import NoInputError, NotFoundError, UserError
from whole_logs import MATCHER

JOB = (
    "[rank0]:[titan] 2025-03-01 10:00:00,051 - root - INFO - step: 22  loss:  2.91027  grad_norm:  0.5926  memory:  9.46GiB(64.99%)  tps: 7,094\n"
    "[rank0]:[E301 10:10:05.1 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600061 milliseconds before timing out.\n"
)
XID = "NVRM: Xid (PCI:0000:b9:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"


def explain(*paths):
    return explain_logs(paths, matcher=MATCHER, now=1740830000.0)


@pytest.mark.parametrize(
    "stamp",
    [
        "[  680111.646286] ",
        "[Sat Mar  1 10:00:04 2025] ",
        "[Sat Mar  1 19:00:04 2025] ",
        "Mar  1 10:00:04 node07 kernel: [680111.6] ",
    ],
    ids=["uptime", "same clock", "other zone", "syslog"],
)
def test_kernel_log_beside_the_jobs(tmp_path, stamp):
    """A kernel log explains the job's time-out, whatever its clock shows; the file's name gives the node."""
    (tmp_path / "job.out").write_text(JOB)
    (tmp_path / "dmesg-node07.log").write_text(stamp + XID)
    said = explain(tmp_path)
    assert (said.verdict, said.cause, said.domain, said.suspects.nodes) == (
        "fault",
        "nvidia.xid.79",
        "hardware",
        ("node07",),
    )
    assert said.restart_helps
    assert "node07/0000:b9:00" in said.suspects.gpus


def test_old_xid_is_not_the_cause(tmp_path):
    """An Xid of days before does not explain today's exception."""
    (tmp_path / "job.out").write_text(
        "[rank3]: Traceback (most recent call last):\n2025-03-01 10:00:00,000 - root - ERROR - x\n[rank3]: KeyError: 'a'\n"
    )
    (tmp_path / "dmesg-node07.log").write_text("[Thu Feb 20 10:00:04 2025] " + XID)
    assert explain(tmp_path).cause.startswith(("python.", "data."))


@pytest.mark.parametrize(("end", "verdict"), [("Training completed", "healthy"), ("", "fault")])
def test_a_program_of_somebody_elses_on_the_node(tmp_path, end, verdict):
    """A memory fault that a kernel log tells of was no trouble of a job that completed; of one that did not, it may."""
    step, _ = JOB.splitlines(keepends=True)
    steps = "".join(step.replace("step: 22", f"step: {number}") for number in range(20, 30))
    (tmp_path / "job.out").write_text(steps + (step.partition(" step:")[0] + f" {end}\n" if end else ""))
    (tmp_path / "dmesg-node07.log").write_text("[Sat Mar  1 10:00:04 2025] " + XID.replace("79,", "31,"))
    assert explain(tmp_path).verdict == verdict


def test_per_rank_files(tmp_path):
    """Ranks' own files: the rank comes from the name, the first to fail is the root."""
    for rank in range(4):
        body = (
            "KeyError: 'a'"
            if rank == 2
            else "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:1"
        )
        (tmp_path / f"rank_{rank}.log").write_text(
            f'Traceback (most recent call last):\n  File "/x/train.py", line 9, in main\n    y\n{body}\n'
        )
    said = explain(tmp_path)
    assert (said.suspects.ranks, said.verdict) == ((2,), "fault")
    assert (said.evidence[0].file.rpartition("/")[2], said.evidence[0].line) == ("rank_2.log", 4)


def test_compressed_and_stdin(tmp_path):
    """.gz, .zst, .xz, .bz2 and UTF-16 are known by their first bytes, and a log that is cut short still tells what came before."""
    text = (JOB + "OSError: [Errno 28] No space left on device: '/x'\n").encode()
    (tmp_path / "a.gz").write_bytes(gzip.compress(text))
    (tmp_path / "b").write_bytes(zstandard.compress(text))
    (tmp_path / "c.xz").write_bytes(lzma.compress(text))
    (tmp_path / "d.bz2").write_bytes(bz2.compress(text))
    (tmp_path / "windows.txt").write_bytes(b"\xff\xfe" + text.decode().encode("utf-16-le"))
    (tmp_path / "big.txt").write_bytes(b"\xfe\xff" + text.decode().encode("utf-16-be"))
    assert len(find_logs([tmp_path])) == 6
    (tmp_path / "cut.gz").write_bytes(gzip.compress(text * 2000)[:-20])
    for name in ("a.gz", "b", "c.xz", "d.bz2", "windows.txt", "big.txt"):
        assert b"".join(read_chunks(str(tmp_path / name))) == text
        assert explain(tmp_path / name).cause == "disk.full"
    told = []
    assert explain_logs([tmp_path / "cut.gz"], matcher=MATCHER, warn=told.append, now=1740830000.0).cause == "disk.full"
    assert "cannot be read to its end" in told[0]


def test_folder_leaves_out_what_is_no_log(tmp_path):
    """Weights and pictures below a folder are not read; an empty folder and a missing file are named."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.out").write_text("x\n")
    (tmp_path / "a" / "model.pt").write_bytes(b"PK")
    (tmp_path / "a" / "blob").write_bytes(b"\x00" * 100)
    assert [p.rpartition("/")[2] for p in find_logs([tmp_path])] == ["x.out"]
    with pytest.raises(NotFoundError, match="no such file"):
        find_logs([tmp_path / "nothing"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no log"):
        find_logs([tmp_path / "empty"])


def test_line_numbers(tmp_path):
    """Byte offsets become line numbers, over more than one chunk."""
    path = tmp_path / "x"
    path.write_bytes(b"".join(b"%07d %s\n" % (i, b"x" * 50) for i in range(60000)))
    assert line_numbers(str(path), [0, 59 * 10, 59 * 40000]) == {0: 1, 590: 11, 59 * 40000: 40001}


@pytest.mark.parametrize(
    ("name", "rank", "node"),
    [
        ("logs/rank_3.log", 3, ""),
        ("/x/none_abc/attempt_0/12/stderr.log", 12, ""),
        ("dmesg-node07.txt", None, "node07"),
        ("node07_dmesg.log", None, "node07"),
        ("slurm-4711.out", None, ""),
    ],
)
def test_source_of(name, rank, node):
    """Rank and node from usual file names."""
    source = source_of(name)
    assert (source.rank, source.node) == (rank, node)


def test_command(tmp_path):
    """The command prints the documented JSON and exits with 1 for a fault, 0 for a healthy log, and writes a page."""
    path = tmp_path / "job.out"
    path.write_text("<script>alert(1)</script>\nOSError: [Errno 28] No space left on device: '/x<script>'\n")
    page = tmp_path / "page.html"
    command = [sys.executable, "-m", "holdfast.cli.main", "explain", "--json"]
    done = subprocess.run([*command, "--html", str(page), str(path)], capture_output=True, text=True, check=False)
    said = json.loads(done.stdout)
    assert (done.returncode, said["verdict"], said["cause"], said["evidence"][0]["line"]) == (
        1,
        "fault",
        "disk.full",
        2,
    )
    assert sorted(said) == sorted(
        ["verdict", "domain", "cause", "summary", "confidence", "restart_helps", "suspects", "evidence", "story"]
    )
    assert "<script>" not in page.read_text()
    done = subprocess.run([*command, "-"], input="[INFO] all is well\n", capture_output=True, text=True, check=False)
    assert (done.returncode, json.loads(done.stdout)["verdict"]) == (0, "healthy")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello\n",
        b"hello",
        bytes(range(256)) * 300,
        b"\x7fELF\x02\x01\x01" + b"\0" * 5000,
        Path("/bin/ls").read_bytes(),
    ],
    ids=["empty", "line", "word", "bytes", "header", "program"],
)
@pytest.mark.parametrize("piped", [True, False])
def test_nothing_to_judge(data, piped, tmp_path):
    """What holds nothing of a log is neither healthy nor a fault, and has an exit code of its own."""
    path = tmp_path / "job.out"
    path.write_bytes(data)
    command = [sys.executable, "-m", "holdfast", "explain", "--json", "-" if piped else str(path)]
    done = subprocess.run(command, input=data if piped else b"", capture_output=True, check=False)
    said = json.loads(done.stdout)
    assert (done.returncode, said["verdict"], said["cause"], said["confidence"]) == (65, "unknown", "none", 0.0)
    assert said["summary"] == "There is nothing to judge in these logs."


def test_nothing_in_one_of_several_files(tmp_path):
    """What is recognised in one file counts; that another holds nothing is said."""
    (tmp_path / "job.out").write_text(JOB.splitlines()[0] + "\n")
    (tmp_path / "notes.txt").write_text("hello\n")
    said = explain(tmp_path)
    assert (said.verdict, "nothing is recognised in 1 of 2 files" in said.story) == ("healthy", True)
    (tmp_path / "job.out").write_text("hello\n")
    assert explain(tmp_path).is_unrecognised


def test_no_such_file_has_an_exit_code_of_its_own(tmp_path):
    """It is told in one sentence."""
    command = [sys.executable, "-m", "holdfast", "explain", str(tmp_path / "nothing.out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("no such file")) == (66, 1)


def test_a_program_that_holds_a_faults_words_is_no_log(tmp_path):
    """A library's texts are judged by nobody; a log that begins with the zero bytes of a rotation is."""
    words = b"\ntorch.OutOfMemoryError: CUDA out of memory\n"
    (tmp_path / "lib").write_bytes(Path("/bin/ls").read_bytes() + words)
    assert explain(tmp_path / "lib").is_unrecognised
    (tmp_path / "log").write_bytes(b"\0" * 3000 + b"step 1 loss 2.0\n" * 90 + words)
    assert explain(tmp_path / "log").cause == "torch.cuda.oom"


@contextlib.contextmanager
def as_nobody():
    """A place that a user without rights may enter, and that user, where root runs the tests."""
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        Path(place).chmod(0o755)
        is_root = os.geteuid() == 0

        def leave():
            for folder, _, _ in os.walk(place):
                Path(folder).chmod(0o755)

        def enter():
            if is_root:
                os.seteuid(65534)

        try:
            yield Path(place), enter
        finally:
            if is_root:
                os.seteuid(0)
            leave()


def test_what_may_not_be_read_is_told():
    """A file, a folder and a file in a closed folder: one sentence with the name; beside readable logs a warning."""
    with as_nobody() as (place, enter):
        (place / "shut").mkdir()
        (place / "job.out").write_text(JOB.splitlines()[0] + "\n")
        (place / "secret.out").write_text(JOB)
        (place / "shut" / "a.out").write_text(JOB)
        (place / "secret.out").chmod(0)
        (place / "shut").chmod(0)
        enter()
        for name in ("secret.out", "shut", "shut/a.out"):
            with pytest.raises(NoInputError, match=f"{name}: cannot be read: permission denied"):
                explain(place / name)
        told: list[str] = []
        said = explain_logs([place], matcher=MATCHER, warn=told.append, now=1740830000.0)
        assert (said.verdict, [text.removeprefix(f"{place}/") for text in told]) == (
            "healthy",
            [f"{name}: cannot be read: permission denied" for name in ("secret.out", "shut")],
        )


def test_an_empty_name_is_no_folder():
    """A shell variable that is not set names nothing, least of all the working folder."""
    with pytest.raises(NoInputError, match="no such file"):
        find_logs([""])


def test_a_fault_at_the_end_of_a_long_pipe():
    """7,000 steps and a fault on the last line: standard input gives what a file gives."""
    steps = "".join(JOB.splitlines()[0].replace("step: 22", f"step: {i}") + "\n" for i in range(7000))
    command = [sys.executable, "-m", "holdfast", "explain", "--json", "-"]
    text = steps + "torch.OutOfMemoryError: CUDA out of memory\n"
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    said = json.loads(done.stdout)
    assert (done.returncode, said["cause"], said["evidence"][0]["line"]) == (1, "torch.cuda.oom", 7001)


def test_elastic_error_file(tmp_path):
    """torchrun's error file is read: its traceback, its time, and the rank from its place."""
    place = tmp_path / "none_x" / "attempt_0" / "3"
    place.mkdir(parents=True)
    stack = 'Traceback (most recent call last):\n  File "/home/mei/train.py", line 7, in main\n    boom()\nValueError: bad shard\n'
    told = {
        "message": {"message": "ValueError: bad shard", "extraInfo": {"py_callstack": stack, "timestamp": "1740830000"}}
    }
    (place / "error.json").write_text(json.dumps(told))
    said = explain(tmp_path)
    assert (said.verdict, said.suspects.ranks) == ("fault", (3,))
    assert "train.py:7" in said.summary


def test_novel_lines_when_nothing_explains(tmp_path):
    """Without a cause, lines that were never printed before are shown, with their numbers."""
    usual = "".join(f"collected batch {i} of the set in 0.{i % 9} s\n" for i in range(300))
    text = (
        usual
        + "flux capacitor 7 reports brownout\n"
        + "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:1\n"
    )
    (tmp_path / "job.out").write_text(text)
    said = explain(tmp_path / "job.out")
    assert said.verdict == "unknown"
    assert [(e.line, e.rule) for e in said.evidence if "flux" in e.text] == [(301, "novelty.line")]
    assert "flux capacitor" in said.story


PYSPY = """Process {pid}: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 0x7F12 (idle): "pin_memory"
    wait (threading.py:331)
Thread {pid} (active): "MainThread"
{frames}"""
WAITS = "    all_reduce (torch/distributed/distributed_c10d.py:2050)\n    step (train.py:88)\n    main (train.py:120)\n"
READS = "    read (dataset.py:31)\n    step (train.py:80)\n    main (train.py:120)\n"


def test_stacks_beside_the_logs(tmp_path):
    """py-spy dumps of four ranks: three wait in an all-reduce, the fourth reads; it is the suspect."""
    (tmp_path / "job.out").write_text(JOB)
    for rank in range(4):
        (tmp_path / f"pyspy-{rank}.txt").write_text(PYSPY.format(pid=100 + rank, frames=READS if rank == 2 else WAITS))
    said = explain(tmp_path)
    assert (said.verdict, said.cause, said.suspects.ranks) == ("fault", "hang.rank", (2,))
    assert "read (dataset.py:31)" in said.summary


STEPS_RULE = {"name": "Steps", "logPattern": r".*step (\d+) of.*", "expectedRecurringFrequencyInSeconds": 300}


def timed(minutes, text):
    return "".join(f"2025-03-01 10:{minute:02d}:00 {text.format(minute)}\n" for minute in minutes)


def explain_by(rules, *paths):
    return explain_logs(paths, matcher=MATCHER, log_rules=log_rules(rules))


def test_log_rules_over_a_whole_log(tmp_path):
    """A line that stopped coming 20 minutes before the end is HANGING; one that came back is no fault."""
    log = tmp_path / "job.out"
    log.write_text(timed(range(10), "step {} of 900") + timed(range(10, 31), "waiting for data"))
    said = explain_by([STEPS_RULE], log)
    assert (said.verdict, said.cause) == ("fault", "hyperpod.hang")
    assert 'Log rule "Steps" is HANGING: no line matched for 300 s' in said.summary
    assert (said.evidence[0].line, said.evidence[0].role) == (10, "root")
    with log.open("a") as file:
        file.write(timed(range(31, 33), "step {} of 900"))
    assert explain_by([STEPS_RULE], log).verdict == "healthy"


def test_fault_rule_slow_rule_and_time_less_logs(tmp_path):
    """faultOnMatch and a metric need no times; hangs are told only where lines carry them."""
    log = tmp_path / "job.out"
    log.write_text("step 1 of 9\n" + "rate=9\n" * 3 + "rate=2\n" * 3 + "all shards spilled\n")
    slow = {"name": "Slow", "logPattern": r".*rate=(\d+)", "metricThreshold": 5, "operator": "lt"}
    fault = {"name": "Spill", "logPattern": "all shards.*", "faultOnMatch": True}
    assert explain_by([STEPS_RULE], log).verdict == "healthy"
    assert explain_by([slow | {"metricEvaluationDataPoints": 3}], log).cause == "hyperpod.slow"
    assert explain_by([slow | {"metricEvaluationDataPoints": 4}], log).verdict == "healthy"
    said = explain_by([fault], log)
    assert (said.cause, said.evidence[0].line, said.evidence[0].text) == ("hyperpod.fault", 8, "all shards spilled")


def test_log_rules_on_the_command_line(tmp_path):
    """`--log-rules` takes the job's manifest."""
    (tmp_path / "job.out").write_text("the reactor is warm\n")
    manifest = tmp_path / "job.yaml"
    manifest.write_text(
        "spec:\n  runPolicy:\n    logMonitoringConfiguration:\n"
        "    - {name: Warm, logPattern: '.*reactor is warm.*', faultOnMatch: true}\n"
    )
    command = [sys.executable, "-m", "holdfast.cli.main", "explain", "--json", "--log-rules", str(manifest)]
    done = subprocess.run([*command, str(tmp_path / "job.out")], capture_output=True, text=True, check=False)
    assert (done.returncode, json.loads(done.stdout)["cause"]) == (1, "hyperpod.fault")


def test_what_the_job_printed_when_well_is_known(tmp_path):
    """In a job's folder, lines that its earlier attempts printed are not new; the file itself is no log."""
    logs = tmp_path / "logs" / "attempt-1"
    logs.mkdir(parents=True)
    (logs / "rank-00000.log").write_text(
        "starting up\ncorpus opened\nwarming the cache\nflux capacitor 7 reports brownout\n"
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:1\n"
    )
    known = [["starting", "up"], ["corpus", "opened"], ["warming", "the", "cache"]]
    (tmp_path / "novelty-n1.json").write_text(json.dumps(known))
    said = explain(tmp_path)
    assert said.verdict == "unknown"
    assert [e.text for e in said.evidence if e.rule == "novelty.line"] == ["flux capacitor 7 reports brownout"]


def job_of_holdfast(folder, launcher, rank):
    """A job's folder as `holdfast run` leaves it, recorded on an H200 with two ranks."""
    logs = folder / "logs" / "attempt-0"
    logs.mkdir(parents=True)
    (folder / "journal.db").write_bytes(b"SQLite format 3\x00")
    (folder / "epoch").write_text("2")
    (folder / "checkpoint-seals" / "4c12").mkdir(parents=True)
    (folder / "checkpoint-seals" / "4c12" / "e000001.json").write_text('{\n "admits": {}\n}')
    (folder / "story.txt").write_text(f"Incident i.1: {launcher[-1]}\n  - 14:23:01Z Seen: {launcher[-1]}\n")
    (logs / "launcher-vm.log").write_text("".join(f"2026-11-27 14:23:01 {line}\n" for line in launcher))
    (logs / "rank-00001.log").write_text(rank)
    (logs / "rank-00000.log").write_text(
        "[rank0]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1425\n"
    )
    return folder


def test_a_jobs_folder_of_holdfast_is_judged_by_its_logs(tmp_path):
    """What the launcher and the story repeat of a fault is no fault of its own: the rank that failed is named."""
    said = "GPU code failed; the cause is in the program or in the GPU: CUDADriverError: CUDA_ERROR_MISALIGNED_ADDRESS: misaligned address at driver.pyx:73, on vm, rank 1"
    launcher = [
        f"hf(0): {said}: hardware or program, this alone does not tell. Whether a restart helps cannot be told from this.",
        f"hf(0) restarts in place: {said}.",
    ]
    told = explain(
        job_of_holdfast(tmp_path, launcher, "[rank1]: torch.AcceleratorError: CUDA error: misaligned address\n")
    )
    assert (told.cause, told.suspects.ranks) == ("cuda.launch_failure", (1,))
    assert {Path(line.file).name for line in told.evidence if line.role == "root"} == {"rank-00001.log"}


def test_a_rank_that_was_killed_is_known_from_the_launchers_line(tmp_path):
    """`kill -9` leaves nothing in the rank's own log; the launcher saw it."""
    told = explain(job_of_holdfast(tmp_path, ["rank 1 on vm ended with signal 9"], "step 20/120 loss 2.0\n"))
    assert (told.cause, told.suspects.ranks) == ("torch.elastic.failed.killed.holdfast", (1,))


def test_unnamed_error_from_standard_input():
    """An error that no rule knows keeps its line number though standard input cannot be read a second time."""
    text = "".join(f"INFO part {i} of the corpus\n" for i in range(9000)) + "FATAL: the map is stale\n"
    ran = subprocess.run(
        [sys.executable, "-m", "holdfast", "explain", "--json", "-"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    said = json.loads(ran.stdout)
    assert (ran.returncode, said["verdict"], said["cause"], said["evidence"][0]["line"]) == (
        1,
        "fault",
        "generic.fatal",
        9001,
    )


def test_a_pipe_that_is_named_is_read_like_standard_input(tmp_path: Path):
    """`explain <(zcat job.log.gz)`: its bytes come once, and all of them are judged."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    lines = [f"step {n} loss 2.0\n" for n in range(9000)]
    whole = "".join([*lines, "torch.OutOfMemoryError: CUDA out of memory\n"])
    writer = threading.Thread(target=pipe.write_text, args=(whole,))
    writer.start()
    said = explain_logs([pipe], matcher=MATCHER, now=1740830000.0)
    writer.join(60)
    assert (said.cause, said.evidence[0].line) == ("torch.cuda.oom", 9001)


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/full", "/dev/urandom"])
def test_a_device_is_no_log(device: str):
    """It would be read for ever."""
    with pytest.raises(NoInputError, match="a device, not a log"):
        explain_logs([device], matcher=MATCHER)
