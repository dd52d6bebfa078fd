"""One validation from begin to end: steps on all nodes, paired tests, who is at fault, verdicts.

Called by the command and by the agent. The order is: every node by itself (all at once), the shared folder, pairs,
collectives, then judgement. What stands apart from the fleet is measured twice more before a node is blamed for it.
Time: that of the steps, each within its limit; nothing else waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from holdfast.validate import collectives, outliers, paired
from holdfast.validate.baselines import Baseline, Kind, judged
from holdfast.validate.results import Item, NodeResult, Run, StepResult, Verdict, failed, worst
from holdfast.validate.results_kept import Plan
from holdfast.validate.troubleshooting import advice_for, advised
from holdfast.validate.under_test import NodesUnderTest
from holdfast.validate.wire import Hello

Baselines = Callable[[Kind], Baseline | None]
Advise = Callable[[str], str]
"""An error's text -> what the catalogue advises; empty: it knows nothing of it."""
BUSY = frozenset({"cpu", "cpu-stress", "gpu"})
BUSY_AT_ONCE = 2
"""So many nodes of one machine measure their processors at once: the others would only wait for them."""
AGAIN = 2
"""So often is measured again what stands apart: on a machine that others share, one bad moment can outlast a step."""
GRAVE = ("software.package.", "software.driver.", "software.libfabric", "cpu.correct", "gpu.bits.")
"""Facts in which a node that stands apart is not fit; in others a person should look."""


class Examination:
    """See the module.

    Args:
        nodes: who is examined, by what.
        baselines: what a node of a kind should reach.
        advise: the catalogue's advice for an error's text.
    """

    def __init__(self, nodes: NodesUnderTest, *, baselines: Baselines, advise: Advise = lambda _text: "") -> None:
        self.nodes = nodes
        self._baselines = baselines
        self._advise = advise
        self._found: dict[str, list[StepResult]] = {hello.node: [] for hello in nodes.hands.nodes}
        self._gate = asyncio.Semaphore(BUSY_AT_ONCE if nodes.colocated else max(1, len(nodes.hands.nodes)))

    # --- the parts ---

    async def run(self, *, resume: bool = False) -> Run:
        """Do all of it."""
        names = tuple(suite.name for suite in self.nodes.asked.suites)
        begin = self.nodes.clock.monotonic()
        plan = self.nodes.results.plan(
            Plan(
                id=f"v{int(self.nodes.clock.now())}-{secrets.token_hex(3)}",
                at=self.nodes.clock.now(),
                suites=names,
                deep=self.nodes.asked.options.deep,
                nodes=tuple(hello.node for hello in self.nodes.hands.nodes),
            ),
            resume=resume,
        )
        await self._by_itself()
        if "shared" in names:
            await self._shared()
        if "network" in names:
            await paired.run(self.nodes)
        if "nccl" in names:
            await collectives.run(self.nodes)
        nodes = await self._judge()
        if self.nodes.results.taken:
            self.nodes.notes.append(f"{self.nodes.results.taken} steps were taken from the interrupted run")
        return Run(
            id=plan.id,
            at=plan.at,
            seconds=round(self.nodes.clock.monotonic() - begin, 2),
            suites=names,
            deep=self.nodes.asked.options.deep,
            baseline=self.nodes.asked.baseline,
            nodes=nodes,
            notes=tuple(self.nodes.notes),
            rounds=tuple(self.nodes.rounds),
        )

    async def _by_itself(self) -> None:
        deep = self.nodes.asked.options.deep
        first = self.nodes.hands.nodes[0].node

        async def one(hello: Hello) -> None:
            for suite in self.nodes.asked.suites:
                if suite.once and hello.node != first:
                    continue
                for step in suite.steps:
                    if step.deep_only and not deep:
                        continue
                    async with self._gate if step.name in BUSY else contextlib.nullcontext():
                        result = await self.nodes.step(hello, step.name)
                    self._found[hello.node].append(result)
                    how = result.error or f"{worst(item.verdict for item in result.items)}, {result.seconds:.1f} s"
                    self.nodes.progress(f"{hello.node}: {step.name}: {how}")

        await self._all(one(hello) for hello in self.nodes.alive)

    async def _shared(self) -> None:
        if not self.nodes.asked.options.shared:
            self.nodes.notes.append("shared: left out; name a folder that all nodes see with --shared DIR")
            return
        token = secrets.token_hex(8)
        folder = f"{self.nodes.asked.options.shared.rstrip('/')}/.holdfast-shared-{token}"
        won: dict[str, StepResult] = {}
        for step in ("shared-make", "shared-count", "shared-read"):

            async def one(hello: Hello, step: str = step) -> None:
                result = await self.nodes.step(hello, step, key=token, shared=folder, token=token)
                if step == "shared-make":
                    won[hello.node] = result
                self._found[hello.node].append(result)

            await self._all(one(hello) for hello in self.nodes.alive)
        winners = [node for node, result in won.items() if any(item.value == 1.0 for item in result.items)]
        if won and not any(result.error for result in won.values()) and len(winners) != 1:
            why = f"{len(winners)} of {len(won)} nodes created the same file exclusively"
            for node in winners or won:
                self.nodes.add(node, failed("shared.exclusive", why, "see shared.lock"))
        for hello in self.nodes.alive[:1]:
            await self.nodes.hands.ask(hello.node, "shared-forget", self.nodes.options(hello, shared=folder))
        self.nodes.progress("shared: done")

    @staticmethod
    async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
        async with asyncio.TaskGroup() as group:
            for one in work:
                group.create_task(one)

    # --- judgement ---

    async def _judge(self) -> tuple[NodeResult, ...]:
        nodes = [self._node(hello) for hello in self.nodes.hands.nodes]
        apart = self._apart(nodes)
        for turn in range(AGAIN):
            if not apart:
                break
            nodes = await self._again(nodes, apart, turn)
            named = {(one.node, one.item) for one in apart}
            apart = [one for one in self._apart(nodes) if (one.node, one.item) in named]
        nodes = [outliers.marked(node, apart, Verdict.FAIL) for node in nodes]
        for verdict, grave in ((Verdict.FAIL, True), (Verdict.WARN, False)):
            facts = [one for one in outliers.facts_apart(nodes) if one.item.startswith(GRAVE) is grave]
            nodes = [outliers.marked(node, facts, verdict) for node in nodes]
        known = {node.node for node in nodes}
        nodes += [
            NodeResult(node=name, rank=len(nodes), lost=why)
            for name, why in self.nodes.hands.lost.items()
            if name not in known
        ]
        return tuple(nodes)

    def _apart(self, nodes: Sequence[NodeResult]) -> list[outliers.Apart]:
        return outliers.figures_apart([node for node in nodes if not node.lost], colocated=self.nodes.colocated)

    async def _again(self, nodes: Sequence[NodeResult], apart: Sequence[outliers.Apart], turn: int) -> list[NodeResult]:
        """The nodes with what stands apart measured once more: a node is blamed for what stays."""
        hellos = {hello.node: hello for hello in self.nodes.alive}
        steps = {item.name: result.step for found in self._found.values() for result in found for item in result.items}
        redo = sorted({(one.node, steps[one.item]) for one in apart if one.item in steps and one.node in hellos})

        async def one(node: str, step: str) -> StepResult:
            async with self._gate:
                self.nodes.progress(f"{node}: {step}: once more, since it stands apart")
                return await self.nodes.step(hellos[node], step, key=f"again {turn + 1}")

        fresh = await asyncio.gather(*(one(node, step) for node, step in redo))
        for (node, _), result in zip(redo, fresh, strict=True):
            self._found[node].append(result)
        return [self._node(hellos[node.node]) if node.node in hellos else node for node in nodes]

    def _node(self, hello: Hello) -> NodeResult:
        """A node's items: of a step that was run twice the second ones."""
        by_name: dict[str, Item] = {}
        last: dict[str, StepResult] = {}
        for result in self._found[hello.node]:
            last[result.step] = result
            by_name |= {item.name: item for item in result.items}
        items = [*by_name.values(), *(self._failed(result) for result in last.values() if result.error)]
        kind = Kind(hello.gpu, hello.instance, hello.cpu)
        items = [*judged(items, self._baselines(kind)), *self.nodes.extra[hello.node]]
        return NodeResult(
            node=hello.node,
            rank=hello.rank,
            items=tuple(map(advised, items)),
            steps=tuple(self._found[hello.node]),
            lost=self.nodes.hands.lost.get(hello.node, ""),
        )

    def _failed(self, result: StepResult) -> Item:
        """A step that did not end well is a failure of its own."""
        advice = self._advise(result.error) or advice_for(result.step, result.error, hung=result.hung)
        return failed(f"{result.step}.ended", result.error, advice)
