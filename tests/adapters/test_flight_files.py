"""NCCL flight-recorder dumps: the rank that did not join is named; a hostile pickle runs nothing."""

import json
import os
import pickle
import subprocess
import sys
import tracemalloc

import pytest

from holdfast.adapters.catalogue_files import read_catalogue
from holdfast.adapters.flight_files import OBJECTS_MAX, is_plain, read_dump
from holdfast.cli.explain import explain_logs
from holdfast.detect.flight import missing_ranks
from holdfast.detect.matcher import Matcher


def raw(number, ranks=4):
    entry = {
        "profiling_name": "nccl:all_reduce",
        "state": "started",
        "frames": [{"filename": "/home/mei/train.py", "line": 88, "name": "step"}],
    }
    status = {"0": {"last_enqueued_collective": number, "last_completed_collective": number - 1}}
    return {
        "version": "2.10",
        "entries": [entry],
        "pg_status": status,
        "pg_config": {"0": {"ranks": str(list(range(ranks)))}},
    }


def test_rank_behind(tmp_path):
    """Three ranks wait in collective 17, the fourth never began it."""
    for rank in range(4):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(raw(16 if rank == 2 else 17)))
    said = missing_ranks([read_dump(str(path)) for path in sorted(tmp_path.iterdir())])
    assert (said.ranks, said.collective, said.frame) == ((2,), 17, "/home/mei/train.py:88")


def test_rank_without_a_dump(tmp_path):
    """A rank that left no dump while all others wait is the suspect."""
    for rank in (0, 1, 3):
        (tmp_path / f"nccl_trace_rank_{rank}.json").write_text(json.dumps(raw(17)))
    assert missing_ranks([read_dump(str(path)) for path in tmp_path.iterdir()]).ranks == (2,)


def test_hostile_pickle(tmp_path):
    """A pickle that would run a command is refused, and so is what is torn."""
    mark = tmp_path / "mark"

    class Bad:
        def __reduce__(self):
            return (open, (str(mark), "w"))

    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps({"entries": [Bad()]}))
    assert read_dump(str(path)) is None
    assert not mark.exists()
    path.write_bytes(pickle.dumps(raw(3))[:40])
    assert read_dump(str(path)) is None


KEYS = b"\x80\x02}(X\x07\x00\x00\x00entries]X\x09\x00\x00\x00pg_statusN"
HUGE = {
    "a place in the memo": KEYS + b"r\xff\xff\xff\x7fu.",
    "a text": KEYS + b"X\xff\xff\xff\xffu.",
    "a text of 64 bits": KEYS + b"\x8d" + b"\xff" * 7 + b"\x00u.",
    "bytes of 64 bits": KEYS + b"\x8e" + b"\xff" * 7 + b"\x00u.",
    "an array of 64 bits": KEYS + b"\x96" + b"\xff" * 7 + b"\x00u.",
    "a number": KEYS + b"\x8b\xff\xff\xff\x7fu.",
    "a frame": KEYS + b"\x95" + b"\xff" * 7 + b"\x00u.",
    "lists": KEYS + b"]" * (OBJECTS_MAX + 1) + b"u.",
    "a place in the memo, as text": KEYS + b"p2147483647\nu.",
}


@pytest.mark.parametrize("data", HUGE.values(), ids=HUGE)
def test_a_pickle_claims_no_memory_by_what_it_says(data, tmp_path):
    """It is refused before anything is loaded."""
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(data)
    tracemalloc.start()
    said, most = read_dump(str(path)), tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert said is None
    assert most < 2 * OBJECTS_MAX


def test_a_deeply_nested_pickle_stops_nothing(tmp_path):
    """Lists in lists where a text belongs are left out."""
    nested = b"]" * 100_000 + b"a" * 99_999
    entry = b"}(X\x0e\x00\x00\x00profiling_name" + nested + b"u"
    keys = (b"X\x09\x00\x00\x00pg_status}", b"X\x07\x00\x00\x00entries](")
    data = b"\x80\x02}(" + keys[0] + keys[1] + entry + b"eu."
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(data)
    assert (dump := read_dump(str(path))) is not None
    assert dump.last_op == ""


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_pickles_of_every_protocol(protocol):
    """Whatever numbers and texts it holds."""
    some = {
        "entries": [raw(i) for i in range(300)],
        "n": [0, -1, 255, 70_000, 1 << 40, -(1 << 62), 1.5, None, True, ("a", 2)],
    }
    data = pickle.dumps(some, protocol=protocol)
    assert is_plain(data)
    assert not is_plain(data[:-1])


def test_explain_reads_dumps_beside_a_log(tmp_path):
    """Dumps beside a log with a time-out name the rank."""
    (tmp_path / "job.out").write_text(
        "[rank0]:[E301 10:10:05.1 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=17, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600061 milliseconds before timing out.\n"
    )
    for rank in range(4):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(raw(16 if rank == 2 else 17)))
    said = explain_logs([tmp_path], matcher=Matcher(read_catalogue()), now=1740830000.0)
    assert (said.verdict, said.cause, said.suspects.ranks) == ("fault", "torch.desync", (2,))
    assert "never began collective #17" in said.summary


@pytest.mark.parametrize("name", ["comm_lib_trace_rank_{}", "_dump_{}", "job_77_dump_{}", "{}.pickle"])
def test_dumps_are_known_by_content(name, tmp_path):
    """Whatever their names are: alone in a folder, and beside a log that went well as far as it goes."""
    for rank in range(4):
        (tmp_path / name.format(rank)).write_bytes(pickle.dumps(raw(16 if rank == 2 else 17), protocol=2))
    matcher = Matcher(read_catalogue())
    alone = explain_logs([tmp_path], matcher=matcher)
    (tmp_path / "job.out").write_text("".join(f"step: {i} loss: 2.0\n" for i in range(20)))
    beside = explain_logs([tmp_path], matcher=matcher)
    for said in (alone, beside):
        assert (said.verdict, said.cause, said.suspects.ranks) == ("fault", "torch.desync", (2,))


def test_another_pickle_is_no_dump(tmp_path):
    """A pickle or an object without a recorder's keys is left alone, and a dump without a rank in its name too."""
    (tmp_path / "rank_1").write_bytes(pickle.dumps({"entries": [1, 2], "epoch": 3}))
    (tmp_path / "rank_2.json").write_text(json.dumps({"entries": []}))
    (tmp_path / "dump").write_bytes(pickle.dumps(raw(3)))
    assert [read_dump(str(path)) for path in tmp_path.iterdir()] == [None] * 3


def test_dumps_that_agree_are_nothing_to_judge(tmp_path):
    """Every rank began the same collectives, and no log stands beside the dumps."""
    for rank in range(4):
        (tmp_path / f"_dump_{rank}").write_bytes(pickle.dumps(raw(17)))
    said = explain_logs([tmp_path], matcher=Matcher(read_catalogue()))
    assert (said.is_unrecognised, "4 flight-recorder dumps agree" in said.story) == (True, True)


RECORDED = """
import os, sys
from pathlib import Path
import torch, torch.distributed as dist
from torch._C import _distributed_c10d as c10d
folder = Path(sys.argv[1])
other = os.fork()
rank = 0 if other else 1
dist.init_process_group("gloo", store=dist.FileStore(str(folder / ".store"), 2), rank=rank, world_size=2)
dist.all_reduce(torch.ones(2))
if rank == 0:
    waiting = dist.all_reduce(torch.ones(2), async_op=True)
(folder / f"comm_lib_trace_rank_{rank}").write_bytes(
    c10d._dump_fr_trace(includeCollectives=True, includeStackTraces=True, onlyActive=False))
written = c10d._dump_fr_trace_json(includeCollectives=True, onlyActive=False)
(folder / "json").mkdir(exist_ok=True)
(folder / "json" / f"_dump_{rank}").write_bytes(written)
dist.all_reduce(torch.ones(2)) if rank else waiting.wait()
if other:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]))
"""


def test_what_pytorch_records(tmp_path):
    """Two real ranks, of one process for a single import: the second never began the second all-reduce, and the first one's dump says where it waits."""
    pytest.importorskip("torch")
    settings = {**os.environ, "TORCH_FR_BUFFER_SIZE": "100"}
    subprocess.run([sys.executable, "-c", RECORDED, str(tmp_path)], env=settings, timeout=60, check=True)
    for folder in (tmp_path, tmp_path / "json"):
        dumps = [read_dump(str(path)) for path in sorted(folder.glob("*_*"))]
        said = missing_ranks(dumps)
        assert (said.ranks, said.collective, said.op) == ((1,), 2, "gloo:all_reduce")
    assert explain_logs([tmp_path], matcher=Matcher(read_catalogue())).suspects.ranks == (1,)
