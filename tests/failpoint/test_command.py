"""holdfast.failpoint.command: the command file, and a clear word for each wrong field."""

import json

import pytest

from holdfast.failpoint.command import (
    KINDS,
    LAUNCHER_KINDS,
    CommandError,
    FaultCommand,
    abort_name,
    command_name,
    decode,
    encode,
    failed_name,
    fired_name,
)
from holdfast.failpoint.faults import ANY_THREAD, FAULTS, SLOWING

REQUIRED = {"log_line": {"line": "x"}}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_survives_the_file(kind):
    """What is encoded is decoded, with the kind's defaults filled in."""
    command = FaultCommand("nightly-7", kind, (5, 6), 40, 1, REQUIRED.get(kind, {}))
    read = decode(encode(command))
    assert (read.id, read.kind, read.ranks, read.at_step, read.attempt) == ("nightly-7", kind, (5, 6), 40, 1)
    assert set(read.params) == {*KINDS[kind], "telemetry_wait_s"}
    assert decode(encode(read)) == read


def test_every_kind_has_a_fault_and_every_fault_a_kind():
    """The table of parameters and the table of functions name the same kinds."""
    assert set(FAULTS) == set(KINDS)
    assert set(KINDS) > ANY_THREAD | SLOWING


GOOD = {"version": 1, "id": "a", "kind": "gil_lock", "ranks": [0], "at_step": None, "params": {"seconds": 3}}


def test_unknown_fields_are_passed_over():
    """A newer writer's fields and parameters do not disturb."""
    command = decode(json.dumps({**GOOD, "colour": "red", "params": {"seconds": 3, "colour": "red"}}))
    assert command.params == {"seconds": 3, "telemetry_wait_s": 30.0}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"version": 2}, "version: 2"),
        ({"version": None}, "version: None"),
        ({"id": "../up"}, r"id: '\.\./up'"),
        ({"id": ""}, "id: ''"),
        ({"id": "a.rank-00001"}, "id: "),
        ({"kind": "gil_lok"}, "kind: 'gil_lok', expected one of crash_segfault"),
        ({"kind": ["x"]}, "kind: "),
        ({"ranks": []}, r"ranks: \[\]"),
        ({"ranks": [True]}, "ranks: True"),
        ({"ranks": 5}, "ranks: 5"),
        ({"at_step": -1}, "at_step: -1"),
        ({"at_step": "3"}, "at_step: '3'"),
        ({"attempt": 1.5}, "attempt: 1.5"),
        ({"params": [1]}, r"params: \[1\]"),
        ({"params": {"seconds": "long"}}, r"params\.seconds: 'long', expected int or float"),
        ({"params": {"seconds": True}}, r"params\.seconds: True"),
        ({"params": {"seconds": -1}}, r"params\.seconds: -1, expected at least 0"),
        ({"params": {"seconds": float("nan")}}, r"params\.seconds: nan"),
        ({"kind": "log_line"}, r"params\.line: is missing"),
        ({"kind": "log_line", "params": {"line": "x", "stream": "tty"}}, r"params\.stream: 'tty'"),
    ],
)
def test_wrong_fields_are_named(change, named):
    """Each wrong field is named with its value."""
    with pytest.raises(CommandError, match=named):
        decode(json.dumps({**GOOD, **change}))


@pytest.mark.parametrize("text", ["", "{", "[]", b"\xff", "null"])
def test_other_text_is_refused(text):
    """Text that is not a JSON object is refused in words."""
    with pytest.raises(CommandError):
        decode(text)


def test_encode_refuses_what_decode_would():
    """A wrong command never reaches a rank."""
    with pytest.raises(CommandError, match="ranks"):
        encode(FaultCommand("a", "gil_lock", ()))


def test_file_names():
    """The names are part of the contract with launchers and drills."""
    names = [command_name("a"), abort_name("a"), fired_name("a", 5), failed_name("a", 5)]
    assert names == ["a.json", "a.abort", "a.rank-00005.fired", "a.rank-00005.failed"]


def test_signals_to_a_rank_are_commands_for_the_launcher():
    """`kill9`, `kill_signal` and `sigstop` use the same files; their parameters are checked too."""
    text = encode(FaultCommand("d1", "kill_signal", (3,), params={"signal": 11}))
    assert decode(text).params["signal"] == 11
    assert decode(encode(FaultCommand("d2", "kill_signal", (3,)))).params["signal"] == 15
    assert not set(KINDS) & set(LAUNCHER_KINDS)
