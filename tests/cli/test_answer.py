"""`cli.answer`: option sets become a command's own options, and one place prints an answer as text or as JSON."""

from __future__ import annotations

import json
from typing import Annotated

import pytest
import typer

from holdfast.cli.answer import Answer, answering, taking
from holdfast.cli.options import OptionSet


class Place(OptionSet, frozen=True):
    """Two options that go together."""

    room: Annotated[str, typer.Option("--room")] = "hall"
    floor: Annotated[int, typer.Option("--floor")] = 0


def look(name: str, *, place: Place) -> Answer:
    """Say where somebody is."""
    form = {"name": name, "room": place.room, "floor": place.floor}
    return Answer(lambda: form, lambda: [f"{name} is in {place.room}"], 3 if place.floor < 0 else 0, "look again")


def call(*argv: str) -> int:
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(answering(look))
    try:
        app(list(argv))
    except SystemExit as left:
        return int(left.code or 0)
    return 0


def test_text_goes_to_standard_output_and_the_hint_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    """A pipe gets the answer, a person the hint too; the answer's exit code is the command's."""
    assert call("ann", "--room", "attic") == 0
    assert capsys.readouterr() == ("ann is in attic\n", "look again\n")
    assert call("ann", "--floor", "-1") == 3


def test_json_is_the_form_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` is an option of every command that answers, with the same exit code."""
    assert call("ann", "--floor", "-1", "--json") == 3
    said = capsys.readouterr()
    assert json.loads(said.out) == {"name": "ann", "room": "hall", "floor": -1}
    assert said.err == ""


def test_a_command_is_called_from_python_as_from_the_shell(capsys: pytest.CaptureFixture[str]) -> None:
    """Positional or by name, with the same defaults."""
    answering(look)("ann", room="cellar")
    assert capsys.readouterr().out == "ann is in cellar\n"


def test_a_command_that_prints_by_itself_has_no_json_of_its_own() -> None:
    """`taking` only takes the options together."""
    seen: list[Place] = []

    def note(*, place: Place) -> None:
        seen.append(place)

    taking(note)(floor=2)
    assert seen == [Place(floor=2)]
    with pytest.raises(TypeError):
        taking(note)(json=True)
