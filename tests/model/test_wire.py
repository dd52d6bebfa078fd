"""The wire format: every kind comes back equal, newer fields are ignored, wrong types named."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from holdfast.errors import VersionError, WireError
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model import wire
from holdfast.model.cluster import JobKey, JobView, NodeView
from holdfast.model.evidence import Finding, Place

KEY = JobKey("c", "7", 2)
FIELDS = {
    "job": KEY, "node": "n1", "order": "o1", "timer": "t", "command": e.Command.DRAIN, "who": "mei", "toml": "",
    "finding": Finding(id="f", rule="r", at=1.0, place=Place(node="n1"), job=KEY), "rule": "r", "boot_id": "b",
    "for_s": 1.5, "evidence": "x", "passed": True, "blind": True, "why": "w", "epoch": 3, "restart_count": 1,
    "drills": ("d",), "phase": "started", "run": "r",
    "attempt": 1, "step": 5, "durable": True, "drill": "d", "kind": "k", "exit_code": 85, "topic": "t", "after_s": 2.0,
}  # fmt: skip


def example(kind: type, **special: object) -> object:
    required = {
        field.encode_name: special.get(field.name, FIELDS.get(field.name))
        for field in msgspec.structs.fields(kind)
        if field.required and field.name not in {"id", "at", "cause"}
    }
    head = {"id": "x", "at": 1.5} if issubclass(kind, e.Event) else {"id": "x", "cause": 1}
    return kind(**head, **required)


@pytest.mark.parametrize("kind", get_args(e.AnyEvent))
def test_every_event_comes_back_equal(kind: type):
    """Encoding and decoding loses nothing, and equal events give equal bytes."""
    special = {"job": JobView(key=KEY)} if kind is e.JobObserved else {}
    special |= {"node": NodeView(name="n1")} if kind is e.NodeObserved else {}
    event = example(kind, **special)
    data = wire.encode(event)
    assert wire.decode_event(data) == event
    assert wire.encode(wire.decode_event(data)) == data


@pytest.mark.parametrize("kind", get_args(o.AnyOrder))
def test_every_order_comes_back_equal(kind: type):
    """The same for orders."""
    order = example(kind)
    assert wire.decode_orders(wire.encode([order])) == [order]
    assert wire.kind_of(order) in wire.encode(order).decode()


def test_fields_of_a_newer_version_are_ignored_and_wrong_types_named():
    """What is unknown is skipped; what is wrong is named with its place; an unknown kind is a version's matter."""
    assert wire.decode_event(b'{"event":"node_heard","id":"a","at":1,"node":"n","mood":"fine"}').node == "n"
    with pytest.raises(WireError, match=r"Expected `float`, got `str` - at `\$\.at`"):
        wire.decode_event(b'{"event":"node_heard","id":"a","at":"noon","node":"n"}')
    with pytest.raises(VersionError, match="teleported"):
        wire.decode_event(b'{"event":"teleported","id":"a","at":1}')
    with pytest.raises(VersionError, match="update holdfast"):
        wire.check_version(wire.WIRE_VERSION + 1)
    with pytest.raises(WireError, match=r"not a Beat: .*source"):
        wire.decode(b"{}", wire.Beat)
    with pytest.raises(WireError, match="list of orders"):
        wire.decode_orders(b"{")
    with pytest.raises(WireError, match="cannot write NodeHeard"):
        wire.encode(e.NodeHeard(id="\ud800", at=1.0, node="n"))


def test_what_an_event_is_about():
    """Job and node are found wherever an event has them."""
    seen = e.FindingSeen(id="a", at=1.0, finding=FIELDS["finding"])
    assert (wire.job_of(seen), wire.node_of(seen)) == ("7#2", "n1")
    assert wire.job_of(e.JobObserved(id="a", at=1.0, job=JobView(key=JobKey("c", "7")))) == "7"
    assert wire.node_of(e.NodeObserved(id="a", at=1.0, node=NodeView(name="n2"))) == "n2"
    timer = e.TimerFired(id="a", at=1.0, timer="t")
    assert (wire.job_of(timer), wire.node_of(timer), wire.names([timer])) == ("", "", ["timer_fired"])
