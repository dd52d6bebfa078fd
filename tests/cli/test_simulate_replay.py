"""`holdfast simulate --replay`: a recorded journal under another policy, side by side."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from conftest import Holdfast
from holdfast.adapters.journal import open_journal
from holdfast.ports import Entry, Touched
from holdfast.sim.options import draw
from holdfast.sim.record import SimResult
from holdfast.sim.run import simulate

sys.path.insert(0, str(Path(__file__).parent.parent.parent))


@pytest.fixture(scope="module")
def recorded() -> SimResult:
    """A simulated run with incidents: what a journal of a real cluster holds."""
    result = simulate(draw(12))
    assert len(result.incidents) > 3
    return result


@pytest.fixture(scope="module")
def journal(recorded: SimResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its journal as a file."""
    path = tmp_path_factory.mktemp("recorded") / "journal.db"

    async def fill() -> None:
        journal = open_journal(f"sqlite:///{path}")
        await journal.acquire("test", lease_s=10.0, now=1.0)
        entries = list(recorded.entries())
        last = entries[-1]
        touched = Touched(incidents=recorded.incidents, orders=recorded.orders)
        await journal.append([*entries[:-1], Entry(last.event, last.orders, touched)])
        await journal.release()
        await journal.close()

    asyncio.run(fill())
    return path


def replayed(holdfast: Holdfast, journal: Path, policy: str, *more: str) -> str:
    Path("new.toml").write_text(policy)
    ran = holdfast("simulate", "--replay", journal, "--policy", "new.toml", *more, columns=110)
    assert ran.code == 0, ran.err
    return ran.out


def test_the_same_policy_changes_nothing(holdfast: Holdfast, journal: Path) -> None:
    """Not one order of a whole simulated history, with its late words, failed commands and killed controllers."""
    form = json.loads(replayed(holdfast, journal, "", "--json"))
    assert form["complete"]
    assert form["orders"]["then"] == form["orders"]["now"]
    odd = [case for case in form["incidents"] if case["differs"]]
    assert odd == []
    assert "Nothing would have been done differently." in replayed(holdfast, journal, "")


def test_another_policy_stands_beside_it(holdfast: Holdfast, journal: Path) -> None:
    """Observe: on the right nothing is done, everything is noted."""
    out = replayed(holdfast, journal, 'mode = "observe"\n')
    assert "(observed)" in out
    assert "then" in out
    form = json.loads(replayed(holdfast, journal, 'mode = "observe"\n', "--json"))
    assert form["policy"] == "new.toml"
    acted = [line["now"] for case in form["incidents"] for line in case["orders"] if line["now"]]
    assert acted
    assert not [text for text in acted if not text.endswith(("(observed)", "(withdrawn)")) and "return" not in text]


def test_what_is_wrong_is_said_in_one_sentence(holdfast: Holdfast, journal: Path) -> None:
    """No policy, no journal, a policy with a wrong key."""
    assert "--policy" in holdfast("simulate", "--replay", journal).sentence
    Path("new.toml").write_text("")
    assert "no journal" in holdfast("simulate", "--replay", "gone.db", "--policy", "new.toml").sentence
    Path("bad.toml").write_text("mod = 1\n")
    ran = holdfast("simulate", "--replay", journal, "--policy", "bad.toml")
    assert ran.code == 78
    assert "mode" in ran.sentence
