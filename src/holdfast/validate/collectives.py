"""Collectives over all nodes, and which node spoils them. Called by `examination` for the `nccl` suite.

One process a node joins a sweep of torch.distributed; a deep run does the quick one first. When the whole group fails
(wrong sums, an error, no end, too slow), or passes over a wire where TCP sends much again, the network's paired tests
come next, unless the run had them: nodes that they find at fault do not take part, because one lossy wire would
stretch every sweep to its limit. What still fails is halved until pairs remain, and each suspect meets a node of a
group that passed. Time: that of the sweeps: log2(nodes) of them and two more at most, each within its limit, which
shrinks to a few times what a half that passed has needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

from msgspec.structs import replace

from holdfast.validate import paired
from holdfast.validate.pairing import Group, Halving, Outcome, Pairing, stories
from holdfast.validate.registry import RESENT, WITHOUT_GPU
from holdfast.validate.results import Item, StepResult, Verdict, failed, warned
from holdfast.validate.step import Tell
from holdfast.validate.under_test import NodesUnderTest, serving
from holdfast.validate.wire import Hello

PORT_S = 120.0
LEAST_S, TIMES = 60.0, 4.0
"""A sweep of the hunt may take so many times what one that passed took, and so long in any case."""
RESENT_MAX = 0.01
"""A share of TCP segments sent again that is worth the paired tests."""
COLOCATED_MAX = 16 << 20
"""Bytes of the largest message between nodes that share a machine: they share its memory, too."""
ADVICE = "keep work away from it and read its step's error; `holdfast check` looks at GPUs, links and memory"


async def run(nodes: NodesUnderTest) -> None:
    """The sweeps, the hunt, the items."""
    alive = _fit(nodes)
    if len(alive) < 2:
        await _alone(nodes)
        return
    hunt = _Hunt(nodes, alive, deep=False)
    passed = await hunt.whole()
    if 1 < len(fit := _fit(nodes)) < len(alive):  # some have no GPU, so that all have met without theirs
        alive, hunt = fit, _Hunt(nodes, fit, deep=False)
        passed = await hunt.whole()
    suspicious = not passed or hunt.resent > RESENT_MAX
    if suspicious and "network" not in {suite.name for suite in nodes.asked.suites}:
        why = f"{hunt.resent:.1%} of a node's TCP segments were sent again" if passed else "the group fails"
        nodes.progress(f"nccl: {why}: the network's paired tests")
        await paired.run(nodes)
        fit = _fit(nodes)
        if 1 < len(fit) < len(alive):
            hunt = _Hunt(nodes, fit, deep=False)
            passed = await hunt.whole()
    if passed and nodes.asked.options.deep:
        figures, hunt = hunt.figures, _Hunt(nodes, hunt.alive, deep=True)
        passed = await hunt.whole()
        hunt.figures = hunt.figures or figures
    left = {hello.node for hello in nodes.alive} - {hello.node for hello in hunt.alive}
    for node in sorted(left):
        left_out = "left out: another test finds it at fault"
        nodes.add(node, Item(name="nccl.group", verdict=Verdict.ABSENT, text=left_out))
    nodes.add(hunt.alive[0].node, *hunt.figures)
    if not passed:
        await hunt.halve()


def _fit(nodes: NodesUnderTest) -> list[Hello]:
    """Nodes that take part; all when the paired tests leave fewer than two."""
    alive = [hello for hello in nodes.alive if hello.node not in nodes.unfit]
    return list(nodes.alive) if len(alive) < 2 else alive


class _Hunt:
    """Sweeps of one kind over these nodes, and who is at fault when the whole group fails."""

    def __init__(self, nodes: NodesUnderTest, alive: Sequence[Hello], *, deep: bool) -> None:
        self.nodes = nodes
        self.alive = tuple(alive)
        self.figures: tuple[Item, ...] = ()
        """Of the whole group, when it passed."""
        self.resent = 0.0
        """The largest share of TCP segments that a node sent again."""
        self._deep = deep
        self._limit_s = 0.0
        self._halving = Halving([hello.node for hello in alive])
        self._outcomes: list[Outcome] = []

    async def whole(self) -> bool:
        """The sweep of all. Did it pass?"""
        return all(one.passed for one in await self._halves(self._halving.next_round()))

    async def halve(self) -> None:
        """After `whole` has failed: find the node, and say so."""
        nodes = self.nodes
        while groups := self._halving.next_round():
            await self._halves(groups)
        pairing = Pairing([hello.node for hello in self.alive])
        small = {frozenset(group) for group in self._halving.small}
        pairing.take([one for one in self._outcomes if one.passed or frozenset(one.group) in small])
        while groups := pairing.next_round():
            found = await self._round(groups)
            pairing.take(found)
        nodes.rounds += [f"collectives, {told}" for told in stories(pairing.rounds) if small]
        for blame in pairing.blamed():
            nodes.add(blame.node, failed("nccl.group", blame.why, ADVICE))
        for node in pairing.undecided():
            if node not in nodes.hands.lost:
                reasons = "; ".join(
                    dict.fromkeys(r for one in self._outcomes if node in one.group for r in one.reasons)
                )
                nodes.add(node, warned("nccl.group", reasons, "run it with more nodes"))
        for group in self._halving.between:
            nodes.notes.append(f"nccl: {', '.join(group)} fail together while both halves pass: look between them")

    async def _halves(self, groups: Sequence[Group]) -> list[Outcome]:
        found = await self._round(groups)
        self._outcomes += found
        self._halving.take(found)
        return found

    async def _round(self, groups: Sequence[Group]) -> list[Outcome]:
        """These groups at once; what the next ones may take follows from those that passed."""
        begin = self.nodes.clock.monotonic()
        took: list[float] = []

        async def one(group: Group) -> Outcome:
            outcome = await self._group(group)
            if outcome.passed:
                took.append(self.nodes.clock.monotonic() - begin)
            return outcome

        found = await asyncio.gather(*(one(group) for group in groups))
        if took:
            self._limit_s = max(LEAST_S, TIMES * max(took))
        self.nodes.progress(f"nccl: {stories([found])[-1]}")
        return found

    async def _group(self, group: Group) -> Outcome:
        hellos = {hello.node: hello for hello in self.nodes.hands.nodes}
        ranks = [hellos[node] for node in group]
        results = await sweep(self.nodes, ranks, deep=self._deep, limit_s=self._limit_s)
        self.resent = max(self.resent, *(_share(result) for result in results))
        for node, result in zip(group, results, strict=True):
            self._without_gpu(node, result)
        reasons = _reasons(group, results)
        if not reasons and len(group) == len(self.alive):
            self.figures = tuple(item for item in results[0].items if item.value is not None)
        return Outcome(group, reasons)

    def _without_gpu(self, node: str, result: StepResult) -> None:
        """A node whose rank had to do without a GPU is at fault by its own word: nobody need hunt for it."""
        for item in result.items:
            if item.name == WITHOUT_GPU and node not in self.nodes.unfit:
                self.nodes.unfit.add(node)
                self.nodes.add(node, item)


async def sweep(nodes: NodesUnderTest, ranks: Sequence[Hello], *, deep: bool, limit_s: float = 0.0) -> list[StepResult]:
    """One process of torch.distributed for each of `ranks`, which may name a node twice; results by rank.

    Args:
        nodes: that it belongs to.
        ranks: the nodes.
        deep: with large messages.
        limit_s: of the step, when it is shorter than its own.
    """
    first = ranks[0]
    size_max = COLOCATED_MAX if nodes.colocated or len({one.node for one in ranks}) < len(ranks) else 0
    kind = {"deep": deep, "limit_s": limit_s, "size_max": size_max}
    names = [one.node for one in ranks]

    def ask(rank: int, told: Tell = lambda _told: None, **more: object) -> Awaitable[StepResult]:
        gpu = {"gpu": names[:rank].count(names[rank]), "gpus": names.count(names[rank])}
        options = nodes.options(ranks[rank], rank=rank, world=len(ranks), **gpu, **kind, **more)
        return nodes.hands.ask(ranks[rank].node, "sweep", options, told)

    async with serving(lambda told: ask(0, told, listen=first.address), PORT_S) as leading:
        if not leading.port:
            return [StepResult(step="sweep", error=leading.why), *(StepResult(step="sweep") for _ in ranks[1:])]
        others = (ask(rank, peer=first.address, port=leading.port) for rank in range(1, len(ranks)))
        return list(await asyncio.gather(leading.end, *others))


def _share(result: StepResult) -> float:
    told = result.told.get(RESENT, 0.0)
    return told if isinstance(told, float) else 0.0


def _reasons(group: Group, results: list[StepResult]) -> tuple[str, ...]:
    """What went wrong, without naming ranks that only waited for others."""
    items = (item for result in results for item in result.items if item.name != WITHOUT_GPU)
    wrong = sorted({item.why for item in items if item.verdict is Verdict.FAIL})
    errors = [f"{node}: {result.error}" for node, result in zip(group, results, strict=True) if result.error]
    return (*wrong, *errors[:3])


async def _alone(nodes: NodesUnderTest) -> None:
    """Two processes on the one node."""
    hello = nodes.hands.nodes[0]
    alone = replace(hello, address="127.0.0.1")
    results = await sweep(nodes, [alone, alone], deep=nodes.asked.options.deep)
    reasons = "; ".join(_reasons((hello.node,) * len(results), results))
    nodes.add(hello.node, *(item for item in results[0].items if item.value is not None))
    verdict = Verdict.FAIL if reasons else Verdict.PASS
    nodes.add(hello.node, Item(name="nccl.group", text="two processes of this node", verdict=verdict, why=reasons))
