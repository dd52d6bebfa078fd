"""Ids of machines, with and without a prefix."""

from __future__ import annotations

import pytest

from holdfast.model.machine import MachineId, other_machine


@pytest.mark.parametrize("text", ["", "4c4c4544", "k8s:aws:///us-east-1a/i-0123456789abcdef0", "slurm:node1/2", ":odd"])
def test_an_id_is_printed_as_it_was_read(text: str) -> None:
    """Journals and the wire hold the text; only one that begins with its colon loses it."""
    assert str(MachineId.parse(text)) == text.removeprefix(":")
    assert bool(MachineId.parse(text)) == bool(text)


@pytest.mark.parametrize(
    ("asked", "known", "other"),
    [
        ("k8s:i-1", ("k8s:i-2", "4c4c"), True),
        ("k8s:i-1", ("k8s:i-1", "4c4c"), False),
        ("k8s:i-1", ("4c4c",), False),
        ("4c4c", ("k8s:i-1",), False),
        ("4c4c", ("k8s:4c4c", "4d4d"), True),
        ("slurm:a/0", ("k8s:a/0",), True),
        ("", ("k8s:i-1",), False),
        ("k8s:i-1", ("", ""), False),
    ],
)
def test_only_ids_of_one_kind_are_compared(asked: str, known: tuple[str, ...], other: bool) -> None:
    """A scheduler's id says nothing of an agent's, and what is not known is not another."""
    assert other_machine(asked, *known) is other
