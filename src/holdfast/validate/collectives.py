"""Collectives over all nodes, and which node spoils them. Called by `examination` for the `nccl` suite.

One process a node joins a sweep of torch.distributed. When the whole group fails (wrong sums, an error, no end), it is
halved until pairs remain, and each suspect meets a node of a group that passed. Time: that of the sweeps, each within
its limit: log2(nodes) of them and two more at most. Nodes that the paired tests have found at fault do not take part:
one lossy wire would stretch every one of these sweeps to its limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING

from holdfast.validate.pairing import Group, Halving, Outcome, Pairing, stories
from holdfast.validate.results import Item, StepResult, Verdict
from holdfast.validate.wire import Hello

if TYPE_CHECKING:
    from holdfast.validate.examination import Examination

PORT_S = 120.0
ADVICE = "keep work away from it and read its step's error; `holdfast check` looks at GPUs, links and memory"


async def run(examination: Examination) -> None:
    """The sweep, the hunt, the items."""
    alive = [hello for hello in examination.alive if hello.node not in examination.unfit]
    if len(alive) < 2 < len(examination.alive):
        alive = list(examination.alive)
    for hello in examination.alive:
        if hello not in alive:
            left_out = "left out: at fault in the paired tests (network.pairs)"
            examination.add(hello.node, Item(name="nccl.group", verdict=Verdict.ABSENT, text=left_out))
    if len(alive) < 2:
        await _alone(examination)
        return
    halving = Halving([hello.node for hello in alive])
    outcomes: list[Outcome] = []
    while groups := halving.next_round():
        found = await asyncio.gather(*(_group(examination, group, f"r{halving.rounds}") for group in groups))
        outcomes += found
        halving.take(found)
        examination.progress(f"nccl: {stories([found])[-1]}")
    pairing = Pairing([hello.node for hello in alive])
    small = {frozenset(group) for group in halving.small}
    pairing.take([one for one in outcomes if one.passed or frozenset(one.group) in small])
    while groups := pairing.next_round():
        found = await asyncio.gather(*(_group(examination, group, f"p{len(pairing.rounds)}") for group in groups))
        pairing.take(found)
        examination.progress(f"nccl: {stories([found])[-1]}")
    examination.rounds += [f"collectives, {told}" for told in stories(pairing.rounds) if small]
    for blame in pairing.blamed():
        why = f"with {' and with '.join(blame.partners)}: {'; '.join(blame.reasons)}"
        examination.add(blame.node, Item(name="nccl.group", verdict=Verdict.FAIL, why=why, advice=ADVICE))
    for node in pairing.undecided():
        if node not in examination.hands.lost:
            reasons = "; ".join(dict.fromkeys(r for one in outcomes if node in one.group for r in one.reasons))
            examination.add(
                node, Item(name="nccl.group", verdict=Verdict.WARN, why=reasons, advice="run it with more nodes")
            )
    for group in halving.between:
        examination.notes.append(f"nccl: {', '.join(group)} fail together while both halves pass: look between them")


async def _group(examination: Examination, group: Group, key: str) -> Outcome:
    """One sweep of a group; the figures of the whole fleet's are added to its first node."""
    hellos = {hello.node: hello for hello in examination.hands.nodes}
    results = await sweep(examination, [hellos[node] for node in group])
    if key == "r0":
        examination.add(group[0], *(item for item in results[0].items if item.value is not None))
    return Outcome(group, _reasons(group, results))


async def sweep(examination: Examination, ranks: Sequence[Hello]) -> list[StepResult]:
    """One process of torch.distributed for each of `ranks`, which may name a node twice; results by rank."""
    ports: asyncio.Queue[int] = asyncio.Queue()
    first = ranks[0]

    def ask(rank: int, **more: object) -> Awaitable[StepResult]:
        options = examination.options(ranks[rank], rank=rank, world=len(ranks), **more)
        told = None if rank else lambda said: ports.put_nowait(int(float(said.get("port", 0))))
        return examination.hands.ask(ranks[rank].node, "sweep", options, told)

    leading = asyncio.ensure_future(ask(0, listen=first.address))
    waiting = asyncio.create_task(ports.get())
    try:
        await asyncio.wait({leading, waiting}, timeout=PORT_S, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            said = leading.result().error if leading.done() else f"it did not listen within {PORT_S:g} s"
            return [StepResult(step="sweep", error=said), *(StepResult(step="sweep") for _ in ranks[1:])]
        others = (ask(rank, peer=first.address, port=waiting.result()) for rank in range(1, len(ranks)))
        return list(await asyncio.gather(leading, *others))
    finally:
        for task in (leading, waiting):
            task.cancel()
        await asyncio.gather(leading, waiting, return_exceptions=True)


def _reasons(group: Group, results: list[StepResult]) -> tuple[str, ...]:
    """What went wrong, without naming ranks that only waited for others."""
    wrong = sorted({item.why for result in results for item in result.items if item.verdict is Verdict.FAIL})
    errors = [f"{node}: {result.error}" for node, result in zip(group, results, strict=True) if result.error]
    return (*wrong, *errors[:3])


async def _alone(examination: Examination) -> None:
    """Two processes on the one node."""
    hello = examination.hands.nodes[0]
    alone = Hello(node=hello.node, rank=0, boot=hello.boot, address="127.0.0.1")
    results = await sweep(examination, [alone, alone])
    reasons = "; ".join(_reasons((hello.node,) * len(results), results))
    examination.add(hello.node, *(item for item in results[0].items if item.value is not None))
    verdict = Verdict.FAIL if reasons else Verdict.PASS
    examination.add(
        hello.node, Item(name="nccl.group", text="two processes of this node", verdict=verdict, why=reasons)
    )
