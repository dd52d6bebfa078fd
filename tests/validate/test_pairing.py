"""Who is at fault: pairs and halves of made-up fleets whose bad nodes are known. Nothing runs."""

from __future__ import annotations

import random

import pytest

from holdfast.validate.pairing import Halving, Outcome, Pairing, reasons_of, stories


def fleet(count: int) -> list[str]:
    return [f"node{number:03d}" for number in range(1, count + 1)]


def hunt(nodes: list[str], bad: set[str]) -> Pairing:
    pairing = Pairing(nodes)
    while groups := pairing.next_round():
        tested = [node for group in groups for node in group]
        assert len(tested) == len(set(tested)), "a node is in one test at a time"
        pairing.take([Outcome(group, ("3% lost",) if bad & set(group) else ()) for group in groups])
    return pairing


@pytest.mark.parametrize("count", [3, 4, 5, 8, 9, 64, 513])
def test_one_bad_node_is_named_in_two_rounds_and_nobody_else(count: int) -> None:
    """Whatever the size, odd or even, and wherever the bad node stands."""
    nodes = fleet(count)
    for bad in {nodes[0], nodes[count // 2], nodes[-1]}:
        pairing = hunt(nodes, {bad})
        assert [blame.node for blame in pairing.blamed()] == [bad]
        assert pairing.undecided() == []
        assert len(pairing.rounds) <= (2 if count % 2 == 0 else 3)


def test_a_blamed_node_has_failed_with_two_different_partners() -> None:
    """One failed test never blames."""
    pairing = hunt(fleet(8), {"node003"})
    assert len(pairing.blamed()[0].partners) >= 2
    once = Pairing(fleet(8))
    groups = once.next_round()
    once.take([Outcome(group, ("x",) if "node003" in group else ()) for group in groups])
    assert once.blamed() == []


def test_any_set_of_bad_nodes_below_half_is_named_exactly() -> None:
    """Also when bad nodes met each other first. 400 drawn fleets."""
    draw = random.Random(9)
    for _ in range(400):
        nodes = fleet(draw.randrange(5, 40))
        bad = set(draw.sample(nodes, draw.randrange(1, max(2, len(nodes) // 4))))
        draw.shuffle(nodes)
        pairing = hunt(nodes, bad)
        assert {blame.node for blame in pairing.blamed()} == bad, (nodes, bad)


def test_a_healthy_fleet_needs_one_round() -> None:
    """An even fleet is done after one round, an odd one after the one that was left over has met somebody."""
    assert len(hunt(fleet(8), set()).rounds) == 1
    assert len(hunt(fleet(7), set()).rounds) == 2
    assert hunt(fleet(7), set()).blamed() == []


def test_two_nodes_alone_stay_undecided() -> None:
    """With nobody else to ask, neither is blamed."""
    pairing = hunt(["a", "b"], {"a"})
    assert pairing.blamed() == []
    assert pairing.undecided() == ["a", "b"]


def test_a_test_that_failed_once_clears_both_when_they_pass_with_others() -> None:
    """A disturbance that does not come again blames nobody."""
    pairing = Pairing(fleet(8))
    first = pairing.next_round()
    pairing.take([Outcome(group, ("slow",) if number == 0 else ()) for number, group in enumerate(first)])
    second = pairing.next_round()
    assert len(second) == 2
    pairing.take([Outcome(group) for group in second])
    assert pairing.next_round() == []
    assert (pairing.blamed(), pairing.undecided()) == ([], [])


def test_the_first_round_pairs_every_node_but_one_of_an_odd_number() -> None:
    """Ends meet: the first with the last, inwards."""
    assert Pairing(fleet(4)).next_round() == [("node001", "node004"), ("node002", "node003")]
    assert Pairing(fleet(5)).next_round() == [("node002", "node005"), ("node003", "node004")]


def test_reasons_name_the_figure() -> None:
    """A limit is crossed in its own direction."""
    limits = {"loss": ("lower", 0.01, "{:.1%} lost"), "rate": ("higher", 5.0, "only {:.0f}")}
    assert reasons_of({"loss": 0.02, "rate": 9.0}, limits) == ("2.0% lost",)
    assert reasons_of({"loss": 0.0, "rate": 4.0}, limits) == ("only 4",)
    assert reasons_of({}, limits) == ()


def test_reasons_that_differ_in_figures_only_are_told_once() -> None:
    """A blamed node's story stays short."""
    pairing = Pairing(fleet(4))
    pairing.take([Outcome(("node001", "node002"), ("7.3% lost",)), Outcome(("node003", "node004"))])
    pairing.take([Outcome(("node001", "node003"), ("11.0% lost",)), Outcome(("node002", "node004"))])
    assert pairing.blamed()[0].reasons == ("7.3% lost",)
    assert stories(pairing.rounds)[0] == "round 1: 2 tests, 1 failed (node001 and node002: 7.3% lost)"


@pytest.mark.parametrize("count", [4, 8, 13, 256])
def test_halves_find_the_bad_member_of_a_group_in_log_rounds(count: int) -> None:
    """Each round tests groups that do not overlap; what remains is small and holds the bad node."""
    nodes = fleet(count)
    for bad in (nodes[0], nodes[count // 3], nodes[-1]):
        halving, passed, rounds = Halving(nodes), set(), 0
        while groups := halving.next_round():
            outcomes = [Outcome(group, ("wrong sums",) if bad in group else ()) for group in groups]
            passed |= {node for one in outcomes if one.passed for node in one.group}
            halving.take(outcomes)
            rounds += 1
        assert len(halving.small) == 1
        assert bad in halving.small[0]
        assert len(halving.small[0]) <= 3
        assert rounds <= count.bit_length()
        assert passed == set(nodes) - set(halving.small[0])


def test_a_fault_between_the_halves_is_told_as_such() -> None:
    """The whole fails, both halves pass: no node is at fault."""
    halving = Halving(fleet(8))
    halving.take([Outcome(halving.next_round()[0], ("timed out",))])
    halving.take([Outcome(group) for group in halving.next_round()])
    assert halving.next_round() == []
    assert halving.small == []
    assert halving.between == [tuple(fleet(8))]
