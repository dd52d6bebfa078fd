"""The paired tests of a fleet: rounds of two nodes each, and which one is at fault. Called by `examination`.

All pairs of a round run at once on machines of their own, and a few at a time where nodes share one. Time: that of
the tests, each within its limit.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from statistics import median

from msgspec.structs import replace

from holdfast.validate.pairing import Outcome, Pairing, reasons_of, stories
from holdfast.validate.results import Item, StepResult, Verdict, failed, number, warned
from holdfast.validate.under_test import NodesUnderTest, serving
from holdfast.validate.wire import Hello

LIMITS: Mapping[str, tuple[str, float, str]] = {
    "network.loss": ("lower", 0.01, "{:.1%} of the datagrams were lost"),
    "network.retransmitted": ("lower", 0.01, "{:.1%} of the TCP segments were sent again"),
    "network.whole_mtu": ("higher", 0.5, "full-size datagrams vanish"),
    "network.sums": ("higher", 0.5, "the two computed different sums"),
    "network.clock_offset": ("lower", 0.5, "the clocks are {:.1f} s apart"),
}
"""On a good wire all but the clock are zero or one exactly; 1 % leaves room for a queue that overflowed once."""
EXACT = {"network.sums": LIMITS["network.sums"]}
MEASURED = {name: limit for name, limit in LIMITS.items() if name not in EXACT}
"""What a queue that overflowed or a machine that stood still for a moment can spoil, too."""
ADVICE = {
    "network.loss": "check cable, transceiver, port and switch counters (`holdfast check nic infiniband efa`)",
    "network.retransmitted": "check cable, transceiver, port and switch counters (`holdfast check nic infiniband efa`)",
    "network.whole_mtu": "set one MTU on all nodes and switch ports, or let ICMP 'fragmentation needed' through",
    "network.sums": "keep work away: silent corruption; run `holdfast check cpu-stress edac`, then have it replaced",
    "network.clock_offset": "see that chrony or ntpd runs and has a source: `chronyc tracking`",
    "network.bandwidth": "check the negotiated speed (`ethtool`), the PCIe link and other traffic",
    "network.latency": "check power saving, interrupt coalescing and other load",
}
SLOW_SHARE = 0.5
"""Less of the median bandwidth is slow; so is a latency of more than the inverse, and LATENCY_US, above its median."""
LATENCY_US = 100.0
AT_ONCE_COLOCATED = 2
PORT_S = 60.0
SHOWN = ("network.latency", "network.bandwidth", "network.loss", "network.retransmitted", "network.clock_offset")


async def run(nodes: NodesUnderTest) -> None:
    """All rounds; the nodes get what was found."""
    hellos = {hello.node: hello for hello in nodes.alive}
    if len(hellos) < 2:
        await _with_itself(nodes)
        return
    pairing = Pairing(tuple(hellos))
    best: dict[str, dict[str, Item]] = {node: {} for node in hellos}
    while wanted := pairing.next_round():
        number_of_round = len(pairing.rounds) + 1
        gate = asyncio.Semaphore(AT_ONCE_COLOCATED if nodes.colocated else len(wanted))
        tests = [_gated(gate, nodes, hellos[a], hellos[b], number_of_round) for a, b in wanted]
        found = await asyncio.gather(*tests)
        outcomes = [
            outcome
            for pair, result in zip(wanted, found, strict=True)
            if (outcome := _outcome(nodes, pair, result, found)) is not None
        ]
        for pair, result in zip(wanted, found, strict=True):
            for node in pair:
                _better(best[node], result)
        lost_before = set(pairing.nodes) & set(nodes.hands.lost)
        pairing.take(outcomes)
        if lost_before:
            pairing.nodes = tuple(node for node in pairing.nodes if node not in lost_before)
        nodes.progress(f"network: {stories(pairing.rounds)[-1]}")
    nodes.rounds += stories(pairing.rounds)
    _tell(nodes, pairing, best)


async def _gated(gate: asyncio.Semaphore, nodes: NodesUnderTest, a: Hello, b: Hello, turn: int) -> StepResult:
    """A pair's test; once more where a moment's load may be why it failed: the next round cannot tell that apart."""
    async with gate:
        result = await pair_test(nodes, a, b, key=f"{b.node} {turn}")
        if _may_pass(result):
            result = await pair_test(nodes, a, b, key=f"{b.node} {turn} again")
        return result


def _may_pass(result: StepResult) -> bool:
    """It failed only by what was measured: wrong sums stay wrong, however often the same ones come out right."""
    values = _values(result)
    return not result.error and bool(reasons_of(values, MEASURED)) and not reasons_of(values, EXACT)


async def pair_test(nodes: NodesUnderTest, asking: Hello, answering: Hello, *, key: str) -> StepResult:
    """One pair. What the answering end cannot do (it hung, it was lost) is the result's error."""
    return await nodes.kept(f"{asking.node} pair {key}", lambda: _pair_test(nodes, asking, answering))


async def _pair_test(nodes: NodesUnderTest, asking: Hello, answering: Hello) -> StepResult:
    token = secrets.token_hex(8)
    listening = nodes.options(answering, token=token, listen=answering.address if len(nodes.alive) > 1 else "")
    async with serving(lambda told: nodes.hands.ask(answering.node, "pair", listening, told), PORT_S) as answer:
        if not answer.port:
            return StepResult(step="pair", error=f"{answering.node}: {answer.why}")
        options = nodes.options(asking, token=token, peer=answering.address, port=answer.port)
        result = await nodes.hands.ask(asking.node, "pair", options)
        served = await answer.end
        if served.error and not result.error:
            result = StepResult(step="pair", error=f"{answering.node}: {served.error}")
    return result


async def _with_itself(nodes: NodesUnderTest) -> None:
    hello = nodes.hands.nodes[0]
    if hello.node in nodes.hands.lost:
        return
    alone = replace(hello, address="127.0.0.1")
    result = await pair_test(nodes, alone, alone, key="itself")
    why = result.error or "; ".join(reasons_of(_values(result), LIMITS))
    verdict = Verdict.FAIL if why else Verdict.PASS
    nodes.add(
        hello.node, *result.items, Item(name="network.loopback", text="a pair with itself", verdict=verdict, why=why)
    )


def _values(result: StepResult) -> dict[str, float]:
    return {item.name: item.value for item in result.items if item.value is not None}


def _outcome(
    nodes: NodesUnderTest, pair: tuple[str, ...], result: StepResult, round_results: Sequence[StepResult]
) -> Outcome | None:
    """The pair's outcome; None when one of the two was lost: that says nothing of the other."""
    if any(node in nodes.hands.lost for node in pair):
        return None
    if result.error:
        return Outcome(pair, (f"no result: {result.error}",))
    values = _values(result)
    reasons = list(reasons_of(values, LIMITS))
    if not nodes.colocated:
        reasons += _slow(values, [_values(one) for one in round_results if not one.error])
    return Outcome(pair, tuple(reasons))


def _slow(mine: Mapping[str, float], others: Sequence[Mapping[str, float]]) -> list[str]:
    """Much slower than the median of the round's pairs. Three pairs at least make a median."""
    found = []
    if len(others) < 3:
        return []
    rate, usual = mine.get("network.bandwidth", 0.0), median(one.get("network.bandwidth", 0.0) for one in others)
    if rate < SLOW_SHARE * usual:
        found.append(f"{number(rate)} MB/s, the median is {number(usual)}")
    trip, median_trip = mine.get("network.latency", 0.0), median(one.get("network.latency", 0.0) for one in others)
    if trip > median_trip / SLOW_SHARE and trip > median_trip + LATENCY_US:
        found.append(f"a round trip takes {number(trip)} us, the median is {number(median_trip)}")
    return found


def _better(best: dict[str, Item], result: StepResult) -> None:
    """A node's figure is the best that it reached with anybody: the other end may be the slow one."""
    for item in result.items:
        if item.value is None or item.name not in SHOWN:
            continue
        known = best.setdefault(item.name, item)
        if known.value is not None and (item.value > known.value) is (item.better == "higher"):
            best[item.name] = item


def _tell(nodes: NodesUnderTest, pairing: Pairing, best: Mapping[str, Mapping[str, Item]]) -> None:
    for node, items in best.items():
        nodes.add(node, *items.values())
    for blame in pairing.blamed():
        rule = next(
            (name for name, (_, _, text) in LIMITS.items() if any(_same(text, reason) for reason in blame.reasons)),
            "network.bandwidth",
        )
        if all(_same(LIMITS["network.clock_offset"][2], reason) for reason in blame.reasons):
            nodes.add(blame.node, warned("network.pairs", blame.why, ADVICE[rule], source="paired tests"))
        else:
            nodes.add(blame.node, failed("network.pairs", blame.why, ADVICE[rule], source="paired tests"))
            nodes.unfit.add(blame.node)
    for node in pairing.undecided():
        if node in nodes.hands.lost:
            continue
        partners = sorted({one for test in pairing.outcomes if node in test.group for one in test.group} - {node})
        why = f"with {', '.join(partners)}: {'; '.join(pairing.reasons(node))}; no third node tells which one it is"
        nodes.add(node, warned("network.pairs", why, "run it with more nodes"))


def _same(text: str, reason: str) -> bool:
    """Was this reason made from this text?"""
    head, _, tail = text.partition("{")
    rest = tail.partition("}")[2]
    return reason.startswith(head) and reason.endswith(rest) if tail else reason == text
