"""`holdfast stragglers`: every form of a recording, real profiler traces, what is wrong in one sentence."""

from __future__ import annotations

import csv
import gzip
import json
import os
import random
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import Holdfast

FORMS = Path(__file__).resolve().parents[2] / "docs" / "json-forms.md"
Rows = list[dict[str, Any]]


def operations(slow: dict[tuple[int, int], float], steps: int = 20) -> Rows:
    """A job of 4 data-parallel ranks x 4 stages as the public traces tell it; `slow`: (data rank, stage) -> factor."""
    rng = random.Random(3)
    return [
        {
            "dp_rank": data, "stage": stage, "rank": stage * 4 + data, "step": 100 + step, "optype": kind,
            "start_ts": 0.0, "duration": base * slow.get((data, stage), 1.0) * rng.lognormvariate(0, 0.02),
            "seq_id": part, "mc": 0, "gmc": stage, "mb_id": part,
        }
        for step in range(steps)
        for data in range(4)
        for stage in range(4)
        for part in range(4)
        for kind, base in (("forward-compute", 1.0), ("backward-compute", 2.0), ("forward-recv", 40.0 - data))
    ]  # fmt: skip


def whole_steps(slow: dict[int, float], *, steps: int = 30, begin: int = 0, waits: bool = True) -> Rows:
    """8 ranks on 2 nodes; each step takes as long as its slowest rank needs."""
    rng = random.Random(4)
    rows: Rows = []
    for step in range(steps):
        work = [rng.lognormvariate(0, 0.02) * (slow.get(r, 1.0) if step >= begin else 1.0) for r in range(8)]
        for rank, one in enumerate(work):
            row = {"iteration": step, "global_rank": rank, "host": f"gpu-{rank // 4}", "step_time": max(work)}
            rows.append({**row, "wait_s": max(work) - one} if waits else row)
    return rows


def write(path: Path, rows: Rows) -> Path:
    match path.suffixes[0]:
        case ".csv" | ".tsv":
            mark = "\t" if path.suffix == ".tsv" else ","
            with path.open("w", newline="") as file:
                table = csv.DictWriter(file, list(rows[0]), delimiter=mark)
                table.writeheader()
                table.writerows(rows)
        case ".json":
            path.write_text(json.dumps(rows))
        case ".jsonl":
            data = "".join(json.dumps(row) + "\n" for row in rows).encode()
            path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
        case ".parquet":
            import pyarrow as pa
            import pyarrow.parquet as pq

            pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def told(holdfast: Holdfast, *paths: Path, code: int = 1) -> Any:
    ran = holdfast("stragglers", *map(str, paths), "--json")
    assert ran.code == code, ran.err
    return json.loads(ran.out)


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.json", "t.jsonl", "t.jsonl.gz", "t.parquet"])
def test_every_form_names_the_slow_worker(holdfast: Holdfast, tmp_path: Path, name: str) -> None:
    """One worker of 16 twice as slow, in each form of table: it alone, with its stage; receiving is no work."""
    form = told(holdfast, write(tmp_path / name, operations({(2, 1): 1.98})))
    assert (form["steps"], form["ranks"], form["stages"], form["note"]) == (20, 16, 4, "")
    [slow] = form["stragglers"]
    assert (slow["kind"], slow["ranks"], slow["stage"], slow["found_step"]) == ("rank", [6], 1, 102)
    assert 1.85 < slow["slowdown"] < 2.1
    assert slow["until_step"] is None


def test_a_stage_and_nobody(holdfast: Holdfast, tmp_path: Path) -> None:
    """A stage with more to do is a stage; without one nobody is named and the exit code is 0."""
    [stage] = told(holdfast, write(tmp_path / "s.csv", operations({(d, 3): 1.3 for d in range(4)})))["stragglers"]
    assert (stage["kind"], stage["stage"], stage["ranks"]) == ("stage", 3, [12, 13, 14, 15])
    assert told(holdfast, write(tmp_path / "n.csv", operations({})), code=0)["stragglers"] == []


def test_a_node_by_waits(holdfast: Holdfast, tmp_path: Path) -> None:
    """Whole steps with their waits under other headings; a node's ranks are one report; the screen says where."""
    path = write(tmp_path / "w.csv", whole_steps(dict.fromkeys(range(4, 8), 1.5), begin=12))
    [slow] = told(holdfast, path)["stragglers"]
    assert (slow["kind"], slow["node"], slow["ranks"], slow["found_step"]) == ("node", "gpu-1", [4, 5, 6, 7], 14)
    shown = holdfast("stragglers", str(path))
    assert "gpu-1" in shown.out
    assert "4-7" in shown.out


def test_without_waits_it_says_so(holdfast: Holdfast, tmp_path: Path) -> None:
    """In synchronous training whole steps alone cannot tell: that is said, not "nobody"."""
    path = write(tmp_path / "w.csv", whole_steps({3: 1.5}, waits=False))
    assert "wait_s" in told(holdfast, path, code=0)["note"]
    assert "cannot be told" in holdfast("stragglers", str(path)).out


TRAINING = """
import os, time, torch, torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule
rank = int(os.environ["RANK"])
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
x = torch.randn(8, 64)
with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=8)) as profiler:
    for _ in range(10):
        time.sleep(0.2 if rank == 2 else 0.05)  # its loader is slow
        model(x).sum().backward()
        profiler.step()
profiler.export_chrome_trace(f"{os.environ['TRACES']}/{rank}.pt.trace.json.gz")
dist.destroy_process_group()
"""


def test_real_profiler_traces(holdfast: Holdfast, tmp_path: Path) -> None:
    """Three ranks of real training, profiled by PyTorch: the one with the slow loader is named."""
    pytest.importorskip("torch", reason="left out: pip install torch")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "3", "TRACES": str(tmp_path)}
    ranks = [
        subprocess.Popen([sys.executable, "-c", TRAINING], env={**os.environ, **common, "RANK": str(rank)})
        for rank in range(3)
    ]
    try:
        assert [rank.wait(timeout=120) for rank in ranks] == [0, 0, 0]
    finally:
        for rank in ranks:
            rank.kill()
    form = told(holdfast, *sorted(tmp_path.glob("*.gz")))
    assert [(slow["kind"], slow["ranks"]) for slow in form["stragglers"]] == [("rank", [2])]
    assert form["stragglers"][0]["slowdown"] > 1.5


def test_gpu_trace_counts_only_exposed_waiting(holdfast: Holdfast, tmp_path: Path) -> None:
    """Collectives under computing are no waiting; steps are those of the GPU's side. The shape of a GPU trace, made up."""
    for rank in range(4):
        work = 90_000.0 if rank == 1 else 50_000.0
        events = []
        for step in range(6):
            begin = step * 100_000.0
            gpu = {"ph": "X", "cat": "kernel"}
            cpu = {"ph": "X", "name": f"ProfilerStep#{step}", "cat": "user_annotation", "ts": begin - 9_000.0}
            side = {**cpu, "cat": "gpu_user_annotation", "ts": begin, "dur": 100_000.0}
            collective = {**gpu, "name": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"}
            events += [
                {**cpu, "dur": 5_000.0},
                side,
                {**gpu, "name": "ampere_bf16_s16816gemm", "ts": begin, "dur": work},
                {**collective, "ts": begin + 10_000.0, "dur": 30_000.0},
                {**collective, "ts": begin + work, "dur": 100_000.0 - work},
                {"ph": "i", "name": "marker", "ts": begin},
            ]
        trace = {"distributedInfo": {"rank": rank, "world_size": 4}, "traceEvents": events}
        (tmp_path / f"r{rank}.json").write_text(json.dumps(trace, indent=1))
    [slow] = told(holdfast, *sorted(tmp_path.glob("*.json")))["stragglers"]
    assert (slow["ranks"], slow["slowdown"]) == ([1], 1.8)


def test_page_has_the_map(holdfast: Holdfast, tmp_path: Path) -> None:
    """`--html` is one file with the table and a heat map of every rank and step; names in it are escaped."""
    rows = whole_steps({5: 1.6}, begin=10)
    for row in rows:
        row["host"] = f"<b>{row['host']}"
    ran = holdfast("stragglers", str(write(tmp_path / "w.jsonl", rows)), "--html", str(tmp_path / "p.html"))
    assert ran.code == 1
    text = (tmp_path / "p.html").read_text()
    drawn = json.loads(text.rsplit('Plotly.newPlot("map", ', 1)[1].split(', {"height"', 1)[0])
    assert len(drawn[0]["z"]) == 8
    assert len(drawn[0]["x"]) == 30
    assert max(drawn[0]["z"][5][12:]) > 1.5 > max(drawn[0]["z"][4])
    assert "&lt;b&gt;gpu-1" in text
    assert "<b>gpu-1" not in text


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "", "is empty"),
        ("a.csv", "step,duration\n1,2\n", "row 1 has no `rank`"),
        ("a.csv", "step,rank,loss\n1,2,3\n", "neither `step_s` nor `optype`"),
        ("a.csv", "step,rank,step_s\n1,0,1.0\n1,1,soon\n", "row 2: step_s is 'soon'"),
        ("a.csv", "step,rank,step_s\n1.5,0,1.0\n", "step is '1.5', it must be a whole number"),
        ("a.csv", "step,rank,step_s\n1,0,-1\n", "duration of 0 or more"),
        ("a.csv", "step,rank,step_s\n1,0,nan\n", "duration of 0 or more"),
        ("a.csv", "step,rank,step_s\n", "no rows"),
        ("a.csv", "step,rank,optype,duration\n1,0,all-reduce,1\n", "no operation of the recording is computing"),
        ("a.jsonl", '{"step": 1, "rank": 0, "step_s": 1}\n{"step"\n', "a.jsonl:2: is no JSON"),
        ("a.json", '[{"step": 1,', "is no JSON"),
        ("a.json", "[1, 2]", "neither a list of rows nor"),
        ("a.json", '{"traceEvents": []}', "tells no rank"),
        ("rank0.json", '{"traceEvents": []}', "has no steps"),
        ("a.parquet", "PAR1 and nothing more", "no whole Parquet file"),
        ("a.bin", "\x00\udcff\udcfe\n", "is no text and no Parquet file"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(holdfast: Holdfast, tmp_path: Path, name: str, text: str, said: str) -> None:
    """One sentence that names the file and the place; a non-zero exit."""
    (tmp_path / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    ran = holdfast("stragglers", str(tmp_path / name))
    assert ran.code not in {0, 1}
    assert name in ran.err or said == "no rows" or "computing" in said
    assert said in ran.err
    assert "Traceback" not in ran.err


def test_no_such_file(holdfast: Holdfast, tmp_path: Path) -> None:
    """A missing file and a folder are told apart."""
    assert "no such file" in holdfast("stragglers", str(tmp_path / "x.csv")).err
    assert "is a folder" in holdfast("stragglers", str(tmp_path)).err


def test_the_page_names_the_form(holdfast: Holdfast, tmp_path: Path) -> None:
    """docs/json-forms.md gives every field."""
    form = told(holdfast, write(tmp_path / "t.csv", operations({(2, 1): 1.98})))
    text = FORMS.read_text(encoding="utf-8").split("stragglers: ", 1)[1].split("\n\n", 1)[0]
    for field in {*form, *form["stragglers"][0]}:
        assert f"`{field}`" in text, field
