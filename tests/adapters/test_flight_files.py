"""NCCL flight-recorder dumps: the rank that did not join is named; a hostile pickle runs nothing."""

import json
import os
import pickle
import resource
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.adapters.flight_files import read_dump, read_dumps
from holdfast.cli.explain import explain_logs
from holdfast.detect.flight import missing_ranks
from whole_logs import MATCHER

RECORDINGS = Path(__file__).parent / "recorded"


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


def memo_bomb():
    """A small pickle that has its reader make room for 64 million memorised objects."""

    def text(word):
        return b"X" + struct.pack("<I", len(word)) + word

    keys = text(b"pg_config") + b"}" + text(b"entries") + b"]"
    return b"\x80\x02}(" + keys + text(b"v") + b"r" + struct.pack("<I", 1 << 26) + text(b"x") + b"u."


HOSTILE = {
    "memo": memo_bomb(),
    "key": pickle.dumps({"pg_config": {}, "pg_status": {10**5000: {}}, "entries": []}),
    "digit": '{"pg_config": {"0": {"ranks": "[\u00b2]"}}, "entries": []}'.encode(),
    "digits": b'{"pg_config": {"0": {"ranks": "[%s]"}}, "entries": []}' % (b"9" * 5000),
}


@pytest.mark.parametrize("how", HOSTILE)
def test_a_hostile_dump_takes_nothing_and_keeps_no_other_from_being_read(tmp_path, how):
    """No memory of the caller's, no traceback; what lies beside it is read."""
    paths = [tmp_path / f"nccl_trace_rank_{rank}" for rank in range(3)]
    for path in paths:
        path.write_bytes(pickle.dumps(raw(17)))
    paths[1].write_bytes(HOSTILE[how])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    said = explain_logs(paths, matcher=MATCHER, now=1740830000.0)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000
    assert said.verdict in {"fault", "unknown"}
    found = read_dumps([str(path) for path in paths])
    assert {str(paths[0]), str(paths[2])} <= {*found}


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


def test_explain_reads_dumps_beside_a_log(tmp_path):
    """Dumps beside a log with a time-out name the rank."""
    (tmp_path / "job.out").write_text(
        "[rank0]:[E301 10:10:05.1 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=17, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600061 milliseconds before timing out.\n"
    )
    for rank in range(4):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(raw(16 if rank == 2 else 17)))
    said = explain_logs([tmp_path], matcher=MATCHER, now=1740830000.0)
    assert (said.verdict, said.cause, said.suspects.ranks) == ("fault", "torch.desync", (2,))
    assert "never began collective #17" in said.summary


@pytest.mark.parametrize("name", ["comm_lib_trace_rank_{}", "_dump_{}", "job_77_dump_{}", "{}.pickle"])
def test_dumps_are_known_by_content(name, tmp_path):
    """Whatever their names are: alone in a folder, and beside a log that went well as far as it goes."""
    for rank in range(4):
        (tmp_path / name.format(rank)).write_bytes(pickle.dumps(raw(16 if rank == 2 else 17), protocol=2))
    alone = explain_logs([tmp_path], matcher=MATCHER)
    (tmp_path / "job.out").write_text("".join(f"step: {i} loss: 2.0\n" for i in range(20)))
    beside = explain_logs([tmp_path], matcher=MATCHER)
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
    said = explain_logs([tmp_path], matcher=MATCHER)
    assert (said.is_unrecognised, "4 flight-recorder dumps agree" in said.story) == (True, True)


RECORDED = """
import os, sys
from pathlib import Path
import torch, torch.distributed as dist
from torch._C import _distributed_c10d as c10d
folder = Path(sys.argv[1])
told, tell = os.pipe()
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
if rank:
    os.close(tell)
    os.read(told, 1)  # until the first rank has written what it saw of the wait
    os._exit(0)
os.write(tell, b".")
os._exit(os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]))  # one all-reduce is still waiting
"""


def test_what_pytorch_records(tmp_path):
    """Two real ranks: the second never began the second all-reduce, and the first one's dump says where it waits."""
    pytest.importorskip("torch")
    settings = {**os.environ, "TORCH_FR_BUFFER_SIZE": "100"}
    subprocess.run([sys.executable, "-c", RECORDED, str(tmp_path)], env=settings, timeout=60, check=True)
    for folder in (tmp_path, tmp_path / "json"):
        dumps = [read_dump(str(path)) for path in sorted(folder.glob("*_*"))]
        said = missing_ranks(dumps)
        assert (said.ranks, said.collective, said.op) == ((1,), 2, "gloo:all_reduce")
    assert explain_logs([tmp_path], matcher=MATCHER).suspects.ranks == (1,)


def test_ranks_that_ran_ahead_wait_in_the_first_collective_that_was_missed():
    """Recorded on two ranks of an H200 (PyTorch 2.11, NCCL 2.28.9): #8 to #11 wait, rank 1 stopped after #7."""
    said = missing_ranks([read_dump(str(path)) for path in sorted((RECORDINGS / "hang_on_h200").iterdir())])
    assert (said.ranks, said.collective, said.op, said.frame) == ((1,), 8, "nccl:all_reduce", "/home/mei/train.py:11")


def test_ranks_that_ran_ahead_by_different_lengths_hide_nothing(tmp_path):
    """What a rank has enqueued beyond the collective that it waits in says nothing about it."""
    for rank, number in enumerate((11, 10, 9, 7)):
        (tmp_path / f"_dump_{rank}").write_bytes(pickle.dumps(raw(number)))
    said = missing_ranks([read_dump(str(path)) for path in sorted(tmp_path.iterdir())])
    assert (said.ranks, said.collective) == ((3,), 8)
