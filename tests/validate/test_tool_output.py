"""What nccl-tests and perftest print, read from what people pasted (recorded/SOURCES.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.validate.results import Verdict
from holdfast.validate.tool_output import parse_nccl_json, parse_nccl_table, parse_perftest
from holdfast.validate.tool_steps import collective_items

RECORDED = Path(__file__).parent / "recorded"


def text(name: str) -> str:
    return (RECORDED / name).read_text(encoding="utf-8")


def test_the_table_gives_sizes_bandwidths_and_wrong_elements() -> None:
    """The better of out of place and in place counts."""
    found = parse_nccl_table(text("nccl_252.txt"))
    assert [one.size for one in found.sizes] == [2**29, 2**30, 2**31, 2**32, 2**33]
    assert (found.sizes[0].busbw, found.sizes[0].wrong) == (97.09, 0)
    assert (found.out_of_bounds, found.wrong) == (0, 0)
    assert found.best.busbw == 97.54
    assert found.error == ""


def test_a_single_gpu_and_na_in_place() -> None:
    """One GPU has no bus bandwidth; in place was not checked."""
    found = parse_nccl_table(text("nccl_287_alltoall.txt"))
    assert (found.sizes[0].busbw, found.sizes[0].wrong) == (0.0, 0)


def test_the_older_table_without_root() -> None:
    """Columns are found by the heading; `error` is a deviation, no count."""
    found = parse_nccl_table(text("nccl_527_p4d.txt"))
    assert (found.sizes[0].busbw, found.sizes[0].wrong) == (230.81, None)


def test_a_run_that_broke_off_is_an_error_and_not_zero_bandwidth() -> None:
    """A heading without rows: no figure, a sentence."""
    found = parse_nccl_table(text("nccl_107_v100.txt"), "NCCL failure common.cu:954 'unhandled system error'\n")
    assert found.sizes == ()
    assert found.error == "NCCL failure common.cu:954 'unhandled system error'"


@pytest.mark.parametrize(
    ("name", "rows", "last"),
    [
        ("nccl_585_mpirun.txt", 5, (128, 0.0)),
        ("nccl_313_labels.txt", 3, (524288, 2.31)),
        ("nccl_103_gb10.txt", 4, (65536, 1.01)),
    ],
)
def test_labels_of_mpirun_and_the_newest_heading(name: str, rows: int, last: tuple[int, float]) -> None:
    """A label before each line, spaces before the label, a version line."""
    found = parse_nccl_table(text(name))
    assert len(found.sizes) == rows
    assert (found.sizes[-1].size, found.sizes[-1].busbw) == last


def test_the_json_form_counts_wrong_elements() -> None:
    """Booleans are strings, a check that was not made is null."""
    found = parse_nccl_json((RECORDED / "nccl_v2.json").read_bytes())
    assert [(one.busbw, one.wrong) for one in found.sizes] == [(97.09, 3), (97.54, None)]
    assert (found.out_of_bounds, found.wrong) == (1, 3)


def test_a_json_that_was_cut_off_is_an_error() -> None:
    """The program was killed in the middle of writing."""
    whole = (RECORDED / "nccl_v2.json").read_bytes()
    assert parse_nccl_json(whole[:400]).error.startswith("its JSON is cut off")
    assert parse_nccl_json(b'{"results": [], "errors": ["remote process exited"]}').error == "remote process exited"


def test_wrong_elements_fail_the_node() -> None:
    """The one thing that no bandwidth makes good."""
    items = {
        item.name: item
        for item in collective_items("all_reduce", parse_nccl_json((RECORDED / "nccl_v2.json").read_bytes()))
    }
    assert items["nccl.all_reduce"].value == 97.54
    assert items["nccl.all_reduce.wrong"].verdict is Verdict.FAIL
    assert "3 elements" in items["nccl.all_reduce.wrong"].why
    (failed,) = collective_items("all_reduce", parse_nccl_table("", "no devices"))
    assert (failed.verdict, failed.why) == (Verdict.FAIL, "no devices")


def test_perftest_in_both_units() -> None:
    """The average counts (the peak is 0 with -D); MB are 2**20 bytes."""
    assert parse_perftest(text("ib_write_bw_273.txt")).gbits == {8: 0.48}
    assert parse_perftest(text("ib_write_bw_65.txt")).gbits == {1024: pytest.approx(7.719, abs=0.001)}
    assert parse_perftest("", "IB device mlx5_9 not found\n").error == "IB device mlx5_9 not found"
