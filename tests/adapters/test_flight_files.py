"""NCCL flight-recorder dumps: the rank that did not join is named; a hostile pickle runs nothing."""

import json
import pickle

from holdfast.adapters.catalogue_files import read_catalogue
from holdfast.adapters.flight_files import read_dump
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
