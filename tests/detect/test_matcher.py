"""The matcher on what real streams are like: torn, coloured, interleaved, huge, broken."""

import time

import pytest

from holdfast.detect import database, search
from holdfast.detect.catalogue import StreamKind
from holdfast.detect.findings import to_finding
from holdfast.detect.lines import take_apart
from holdfast.detect.matcher import (
    FOLD_MIN,
    JUDGED_FIRST,
    JUDGED_PER_MIB,
    WALKED_PER_MIB,
    BlockReader,
    StreamSource,
)
from holdfast.model.evidence import Place
from whole_logs import MATCHER

XID = b"[1.0] NVRM: Xid (PCI:0000:b9:00): 74, pid=1, NVLink: fatal error detected on link 6(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)\n"
TRACE = """[rank{r}]: Traceback (most recent call last):
[rank{r}]:   File "/home/mei/train.py", line 8{r}, in main
[rank{r}]:     x
[rank{r}]: ValueError: bad {r}
""".format


ELASTIC_TABLE = """Root Cause (first observed failure):
[0]:
  time      : 2025-03-01_10:00:00
  host      : node01
  rank      : RANK (local_rank: 0)
  exitcode  : 1 (pid: 77)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
"""


def ids(matches):
    return [m.rule.id for m in matches]


def stream(kind=StreamKind.ANY, **more):
    return MATCHER.stream(StreamSource(kind=kind), **more)


@pytest.mark.parametrize("size", [1, 7, 64, 4096])
def test_torn_anywhere(size):
    """However the bytes are cut, the same matches come out with the same places."""
    data = (
        b"hello\n"
        + XID
        + "".join(TRACE(r=r) for r in range(3)).encode()
        + b"OSError: [Errno 28] No space left on device"
    )
    whole = stream()
    expected = whole.feed(data, 0.0) + whole.flush(0.0)
    torn = stream()
    got = [m for i in range(0, len(data), size) for m in torn.feed(data[i : i + size], 0.0)] + torn.flush(0.0)
    assert got == expected
    assert ids(got) == ["nvidia.xid.74", *["python.exception"] * 3, "disk.full"]
    assert [m.line_no for m in got] == [2, 6, 10, 14, 15]
    assert all(data[m.offset :].decode().startswith(m.text[:20]) for m in got)


def test_captures_and_places():
    """Link, GPU, registers, rank, innermost user frame."""
    match = stream().feed(XID, 0.0)[0]
    assert (match.captures["link"], match.captures["gpu_id"], match.captures["xid"]) == ("6", "0000:b9:00", "74")
    match = stream().feed(TRACE(r=3).encode(), 0.0)[0]
    assert (match.rank, match.captures["type"], match.captures["file"], match.captures["line"]) == (
        3,
        "ValueError",
        "/home/mei/train.py",
        "83",
    )


@pytest.mark.parametrize(
    ("digits", "number"),
    [("7", 7), ("007", 7), ("10000000", 10_000_000), ("10000001", None), ("99999999999", None), ("9" * 5000, None)],
    ids=["7", "007", "most", "too many", "many more", "5000 digits"],
)
def test_ranks_and_gpus_that_no_job_has(digits, number):
    """Anyone may write any number into a log: it is no place, and stops nothing."""
    told = StreamSource(kind=StreamKind.ANY, rank=3)
    reading = MATCHER.stream(told)
    match = (reading.feed(f"srun: error: a: task {digits}: Terminated\n".encode(), 0.0) + reading.flush(0.0))[0]
    assert match.rank == (3 if number is None else number)
    match = stream().feed(f"Memory access fault by GPU node-{digits} (Agent handle: 0x5)\n".encode(), 0.0)[0]
    assert to_finding(match, source_place=Place(gpu=5), job=None, attempt=None, at=1.0, id_prefix="f").place.gpu == (
        5 if number is None else number
    )
    table = ELASTIC_TABLE.replace("RANK", digits).encode()
    reading = stream()
    match = (reading.feed(table, 0.0) + reading.flush(0.0))[-1]
    assert (match.rule.id, match.rank) == ("exit.code.1", number)


def test_kernel_lines_in_a_jobs_output_are_not_believed():
    """A job cannot have its node drained by printing an Xid; the kernel's log can."""
    assert ids(stream(StreamKind.OUTPUT).feed(XID, 0.0)) == []
    assert ids(stream(StreamKind.KERNEL).feed(XID, 0.0)) == ["nvidia.xid.74"]


def test_interleaved_tracebacks():
    """Two ranks' tracebacks, line by line in turn, are put together per rank."""
    lines = [line for pair in zip(TRACE(r=1).splitlines(), TRACE(r=2).splitlines(), strict=True) for line in pair]
    got = stream().feed(("\n".join(lines) + "\n").encode(), 0.0)
    assert [(m.rank, m.captures["line"], m.captures["message"]) for m in got] == [
        (1, "81", "bad 1"),
        (2, "82", "bad 2"),
    ]


def test_specific_rule_owns_the_last_line_of_a_traceback():
    """A traceback that ends in a known error is that error, with the frame."""
    text = TRACE(r=0).replace("ValueError: bad 0", "RuntimeError: CUDA error: uncorrectable ECC error encountered")
    match = stream().feed(text.encode(), 0.0)[0]
    assert (match.rule.id, match.captures["function"]) == ("cuda.ecc", "main")


def test_three_line_record():
    """NVRM's message over three lines is one match, with the GPU's address."""
    text = "[1.1] NVRM: The NVIDIA GPU 0000:18:00.0\n[1.2] NVRM: (PCI ID: 10de:2901) installed in this system has\n[1.3] NVRM: fallen off the bus and is not responding to commands.\n"
    match = stream().feed(text.encode(), 0.0)[0]
    assert (match.rule.id, match.captures["gpu_id"]) == ("nvidia.gpu.gone.whole", "0000:18:00.0")


def test_colours():
    """ANSI sequences between the words hide nothing, and offsets are those of the raw bytes."""
    data = b"a\n\x1b[32mINFO\x1b[0m ok\n\x1b[31mOSError:\x1b[0m [Errno 28] \x1b[1mNo space left\x1b[0m on device\n"
    match = stream().feed(data, 0.0)[0]
    assert (match.rule.id, match.line_no, match.offset) == ("disk.full", 3, data.index(b"\x1b[31m"))


def test_colours_that_begin_late():
    """A stream that was plain for long: the first coloured words are found as well, and their places."""
    plain = b"a plain line of no interest\n" * 2000
    coloured = b"\x1b[31mOSError:\x1b[0m [Errno 28] \x1b[1mNo\x1b[0m space left on device\n"
    stream = MATCHER.stream(StreamSource(kind=StreamKind.ANY))
    found = [match for data in (plain, plain + coloured + plain, plain + coloured) for match in stream.feed(data, 0.0)]
    lines, size = 2000, len(plain)
    expected = [(2 * lines + 1, 2 * size), (4 * lines + 2, 4 * size + len(coloured))]
    assert [(match.rule.id, match.line_no, match.offset) for match in found] == [("disk.full", *at) for at in expected]


def test_carriage_returns():
    """Each state of a progress bar is a line; an error behind one is seen."""
    bars = (
        "".join(f"\r {i}%|#  | {i}/100 [00:{i:02d}<1:00,  1.00s/it]" for i in range(1, 60))
        + "\rOSError: [Errno 28] No space left on device\n"
    )
    got = stream().feed(bars.encode(), 0.0)
    assert [int(m.captures["step"]) for m in got[:-1]] == list(range(1, 60))
    assert got[-1].rule.id == "disk.full"


def test_invalid_utf8_and_nul():
    """Bytes that are no text do not hide what follows."""
    assert ids(stream().feed(b"\xff\xfe\x00\x80 garbage \xc3\n\xff " + XID, 0.0)) == ["nvidia.xid.74"]


def test_hundred_megabyte_line():
    """A line of 100 MB is read in bounded memory and time, and what it holds is found once."""
    watch = stream()
    block = b"x" * (1 << 20)
    start = time.perf_counter()
    got = []
    for i in range(100):
        got += watch.feed(block, 0.0)
        assert watch.pending <= 3 << 20
        if i in {50, 60}:
            got += watch.feed(b" OSError: [Errno 28] No space left on device ", 0.0)
    got += watch.feed(b"\n" + XID, 0.0)
    assert ids(got) == ["disk.full", "nvidia.xid.74"]
    assert got[-1].line_no == 2
    assert time.perf_counter() - start < 20


@pytest.mark.parametrize(
    ("text", "rank", "node", "body"),
    [
        ("[default7]: iteration 1/ 2 |", 7, "", "iteration 1/ 2 |"),
        ("[rank0]:   File x", 0, "", "  File x"),
        ("5: [rank5]: boom", 5, "", "boom"),
        (" 12: boom", 12, "", "boom"),
        ("[1,3]<stderr>:boom", 3, "", "boom"),
        ("[rank: 2] Received SIGTERM: 15", 2, "", "Received SIGTERM: 15"),
        ("[pod/worker-3/pytorch] boom", None, "worker-3", "boom"),
        ("Feb 23 16:24:18 node07 kernel: NVRM: x", None, "node07", "kernel: NVRM: x"),
        ("(RayTrainWorker pid=99, ip=10.0.0.7) boom", None, "10.0.0.7", "boom"),
        ("ValueError: x", None, "", "ValueError: x"),
    ],
)
def test_prefixes(text, rank, node, body):
    """Rank prefixes of torchrun, srun, MPI, Lightning, kubectl, Ray and syslog."""
    line = take_apart(text, 2025)
    assert (line.rank, line.node, line.body) == (rank, node, body)


def test_pdsh_host():
    """pdsh's host prefix is taken off and kept."""
    match = stream().feed(b"node07: OSError: [Errno 5] Input/output error: '/x'\n", 0.0)[0]
    assert match.rule.id == "fs.io"
    match = stream().feed(b"node07: ModuleNotFoundError: No module named 'x'\n", 0.0)[0]
    assert (match.rule.id, match.node) == ("python.import", "node07")


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2025-04-01 00:25:47,084 - x", 1743467147.084),
        ("[2026-02-02 12:15:56] x", 1770034556.0),
        ("2025-04-01T02:25:47.5+02:00 x", 1743467147.5),
        ("May 19 07:08:57 host kernel: x", 1747638537.0),
        ("[Wed Mar  1 17:38:38 2023] x", 1677692318.0),
        ("[rank0]:[E907 22:34:22.500 ProcessGroupNCCL.cpp:1515] x", 1757284462.5),
        ("[680111.646286] NVRM: x", None),
    ],
)
def test_times(text, at):
    """Times of many loggers, read as UTC; uptime is none."""
    assert take_apart(text, 2025).at == at


def test_many_progress_lines_are_folded_and_all_read():
    """In one block, many progress lines of a rule become one match that knows every step."""
    lines = "".join(f" iteration {i:8d}/  500000 | consumed samples: 1 | lm loss: 2.0E+00 |\n" for i in range(1, 500))
    got = stream().feed(lines.encode() + XID, 0.0)
    assert ids(got) == ["progress.megatron", "nvidia.xid.74"]
    assert (got[0].count, got[0].numbers, got[0].line_no, got[0].captures["step"]) == (
        499,
        tuple(map(float, range(1, 500))),
        499,
        "499",
    )
    few = stream().feed("".join(lines.splitlines(keepends=True)[: FOLD_MIN - 1]).encode(), 0.0)
    assert len(few) == FOLD_MIN - 1


def test_sampled_progress_still_knows_the_end():
    """With sampled progress every fault is found, and the last step is known."""
    watch = stream(sampled=True)
    got = []
    for block in range(40):
        got += watch.feed(
            "".join(f" iteration {block * 100 + i:8d}/  500000 | lm loss: 2.0E+00 |\n" for i in range(100)).encode(),
            0.0,
        )
        got += watch.feed(XID, 0.0)
    got += watch.flush(0.0)
    assert ids(got).count("nvidia.xid.74") == 40
    assert (
        ids(got)[-1] != "nvidia.xid.74"
        or max(float(m.captures["step"]) for m in got if m.rule.id == "progress.megatron") >= 3000
    )


def test_unnumbered():
    """Line numbers can be left out; offsets stay."""
    match = stream(numbered=False).feed(b"a\nb\n" + XID, 0.0)[0]
    assert (match.line_no, match.offset) == (0, 4)


def test_implicit_and_verdict():
    """Xid 154 carries the driver's verdict; 144-150 their sub-code; what NVIDIA does not list is judged by its own word."""
    text = "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  {}   XC0 i0 Link 09 (0xffffffff 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)\n"
    fatal, soft = (stream().feed(text.format(word).encode(), 0.0)[0] for word in ("Fatal", "Nonfatal"))
    assert (fatal.rule.role, soft.rule.role, fatal.captures["link"], fatal.captures["sub"]) == (
        "root",
        "context",
        "9",
        "NETIR_LINK_EVT",
    )
    verdict = (
        "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)\n"
    )
    assert stream().feed(verdict.encode(), 0.0)[0].rule.remedy == "reboot"


def test_floods_are_calmed():
    """A rule's flood in one block is thinned; a fault among a flood of warnings is found; distinct faults stay."""
    warnings = b"/x.py:1: UserWarning: Error: something is deprecated\n" * 20000
    assert ids(stream().feed(warnings + XID + warnings, 0.0)) == ["nvidia.xid.74"]
    flood = b"".join(b"OSError: [Errno 28] No space left on device: '/%d'\n" % i for i in range(9000))
    reading = stream()
    for turn in range(3):
        found = reading.feed(flood + XID + flood, 0.0)
        got = [match.rule.id for match in found]
        full = [match.text for match in found if match.rule.id == "disk.full"]
        assert JUDGED_PER_MIB // 4 < len(full) < (JUDGED_PER_MIB if turn else JUDGED_FIRST)
        assert got.count("nvidia.xid.74") == 1
        assert (full[0], full[-1]) == (flood.splitlines()[0].decode(), flood.splitlines()[-1].decode())


PREFIXES = {
    "srun": "{r}: ",
    "torchrun": "[default{r}]:",
    "pdsh": "node0{r}: ",
    "pdsh and rank": "node0{r}: [rank{r}]: ",
    "mpirun": "[1,{r}]<stderr>:",
    "ray": "(Worker pid=7{r}, ip=10.0.0.{r}) ",
    "time and rank": "2024-11-20 14:37:1{r} [rank{r}]: ",
    "pod and time": "[pod/train-{r}/main] 2025-05-16T16:39:51.208Z ",
    "log viewer": "  | 2024-08-23T22:22:58.87{r}Z | [rank{r}]: ",
    "compose": "worker-{r}  | ",
    "line number": "[10{r}] [rank{r}]: ",
}


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES.keys())
def test_tracebacks_of_two_ranks_interleaved_under_any_prefix(prefix):
    """Each rank's traceback is put together by its own prefix, with the user's own frame."""
    frame = ['  File "/home/mei/train.py", line 88, in main', "    out = step(batch)"]
    one = ["Traceback (most recent call last):", *frame, "ValueError: bad shard header"]
    other = ["Traceback (most recent call last):", *frame, "KeyError: 'ids'"]
    lines = [
        prefix.format(r=r) + line for pair in zip(one, other, strict=True) for r, line in zip((2, 1), pair, strict=True)
    ]
    stream = MATCHER.stream(StreamSource(kind=StreamKind.ANY))
    found = [m.captures for m in stream.feed("\n".join([*lines, ""]).encode(), 1.0) if "file" in m.captures]
    assert [(c["type"], c["message"], c["line"]) for c in found] == [
        ("ValueError", "bad shard header", "88"),
        ("KeyError", "'ids'", "88"),
    ]


def work_of(lines, monkeypatch, mib=12, measured=4):
    """Lines judged or walked, and hits that the search reports, for each MiB of a flood that has gone on for some."""
    work = {"lines": 0, "hits": 0}

    def line(*args, judge=BlockReader.line, **more):
        work["lines"] += 1
        return judge(*args, **more)

    def hits(*args, seek=database.hits):
        found = seek(*args)
        work["hits"] += sum(map(len, found.values()))
        return found

    monkeypatch.setattr(BlockReader, "line", line)
    monkeypatch.setattr(search, "hits", hits)
    block = ("\n".join(lines) + "\n") * ((1 << 20) // sum(len(line) + 1 for line in lines))
    reading = MATCHER.stream(StreamSource(), sampled=True)
    reading.walks, reading.allowance = 0.0, 0.0
    for _ in range(mib):
        reading.feed(block.encode(), 0.0)
    before = dict(work)
    for _ in range(measured):
        reading.feed(block.encode(), 0.0)
    return {name: (done - before[name]) / measured for name, done in work.items()}


FLOODED = [
    "Traceback (most recent call last):",
    "Root Cause (first observed failure):",
    "NVRM: The NVIDIA GPU 0000:18:00.0",
    "ceph: mds0 hung",
    "RuntimeError: cuFFT error: CUFFT_INTERNAL_ERROR",
]


@pytest.mark.parametrize("line", FLOODED)
def test_work_of_a_flood_of_one_line(line, monkeypatch):
    """Of tens of thousands of hits in each MiB few are reported and judged, and few lines are offered to records."""
    work = work_of([line], monkeypatch)
    assert work["lines"] < 2 * (JUDGED_PER_MIB + WALKED_PER_MIB)
    assert work["hits"] < 12_000


def test_work_of_a_flood_of_every_rule(monkeypatch):
    """All rules' examples over and over: each rule's are judged in some of the blocks."""
    lines = [line for rule in MATCHER.catalogue.scanned for line in rule.matches]
    work = work_of(lines, monkeypatch)
    assert JUDGED_PER_MIB < work["lines"] < 1200
    assert work["hits"] < 12_000


def test_an_unended_traceback_is_told_after_a_flood(monkeypatch):
    """Lines are offered to it for so long only, and it is told when the stream ends."""
    reading = MATCHER.stream(StreamSource(), sampled=True)
    reading.walks = 0.0
    calm = b"[rank0]: nothing of note in this line\n" * 2000
    reading.feed(b"[rank3]: Traceback (most recent call last):\n" + calm, 0.0)
    assert not reading.records
    assert [(m.rule.id, m.rank) for m in reading.flush(0.0)] == [("generic.traceback", 3)]
