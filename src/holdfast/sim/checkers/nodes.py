"""Nodes: the brake is kept, other people's drains are left alone, and no drain of ours outlives its reason."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.events import Command
from holdfast.model.machine import other_machine
from holdfast.model.orders import OrderStatus
from holdfast.model.policy import Brake
from holdfast.model.records import NodeState
from holdfast.sim.checkers.orders import first_given
from holdfast.sim.history import PERSON, Drained, History, OrderTook, Resumed

OWN_REASON = "[holdfast]"
"""What drains of ours begin with, by the documents."""
REACTION_S = 120.0
"""An order that is under way when a person acts may still take effect; so long after that it must not."""
SLACK_S = 0.05
_ON_THE_MACHINE = (o.QuarantineNode, o.ResetGpu, o.RebootNode, o.ReplaceNode, o.ReturnNode)
_NOT_ON_THEIRS = (o.ResetGpu, o.RebootNode, o.ReplaceNode, o.ReturnNode)


# --- the brake --------------------------------------------------------------------------------------------------------


class _Group:
    """What a judge remembers of one group."""

    def __init__(self) -> None:
        self.nodes: set[str] = set()
        self.taken: list[tuple[float, str]] = []


def brake_is_kept(history: History) -> Iterator[str]:
    """Within any window no more nodes of a group are quarantined than its brake allows, and none of them more often.

    People's drains are theirs.
    """
    groups: dict[str, _Group] = {}
    where: dict[str, str] = {}
    now = 0.0
    for step in history.steps:
        event = step.event
        now = max(now, event.received_at or event.at)
        if isinstance(event, e.PolicyLoaded):
            return  # another policy holds from here on, with limits that this history does not tell
        _note_groups(groups, where, event)
        if isinstance(event, e.OperatorCommand) and event.command is Command.RESET_BRAKE:
            groups.setdefault(event.group, _Group()).taken.clear()
        by_hand = isinstance(event, e.OperatorCommand)
        for order in step.orders:
            if not isinstance(order, o.QuarantineNode) or by_hand or order.cause != event.seq:
                continue
            name = where.get(order.node, "")
            group = groups.setdefault(name, _Group())
            rules = history.policies.for_group(name).brake
            group.taken = [(at, node) for at, node in group.taken if at > now - rules.window_s + SLACK_S]
            group.taken.append((now, order.node))
            limit = _limit(rules, len(group.nodes))
            nodes = len({node for _, node in group.taken})
            times = sum(node == order.node for _, node in group.taken)
            if times > limit or (times == 1 and nodes > limit):  # one that has its place takes no other
                yield (
                    f"{order.node} is quarantined (event {event.seq}), {nodes} nodes of group {name!r} and this one "
                    f"{times} times within {rules.window_s:g} s; its brake allows {limit} of {len(group.nodes)}"
                )


def _note_groups(groups: dict[str, _Group], where: dict[str, str], event: e.AnyEvent) -> None:
    name = ""
    if isinstance(event, e.NodeObserved):
        name, group = event.node.name, event.node.group
    elif isinstance(event, e.NodeVanished):
        groups.get(where.pop(event.node, ""), _Group()).nodes.discard(event.node)
        return
    else:
        spoken = event.finding.place.node if isinstance(event, e.FindingSeen) else getattr(event, "node", "")
        if not isinstance(spoken, str) or not spoken or spoken in where:
            return
        name, group = spoken, ""
    if where.get(name) != group:
        if name in where:
            groups[where[name]].nodes.discard(name)
        where[name] = group
        groups.setdefault(group, _Group()).nodes.add(name)


def _limit(rules: Brake, nodes: int) -> int:
    """The smaller of both limits, but one at least unless a limit is zero (docs/policy.md)."""
    share = int(nodes * rules.max_percent / 100.0)
    least = 1 if rules.max_nodes > 0 and rules.max_percent > 0 else 0
    return max(least, min(rules.max_nodes, share))


# --- ownership --------------------------------------------------------------------------------------------------------


def drains_are_our_own(history: History) -> Iterator[str]:
    """We lift and replace no drain of a person, act on no machine but the one meant, and undo no person's return."""
    yield from _in_the_world(history)
    yield from _by_the_journal(history)


def _in_the_world(history: History) -> Iterator[str]:
    given = first_given(history)
    holder: dict[str, str] = {}
    freed: dict[str, float] = {}
    """When a person last lifted a drain."""
    for deed in history.deeds:
        match deed:
            case Drained():
                before = holder.get(deed.node, "")
                if before.startswith(PERSON) and not deed.by.startswith(PERSON):
                    yield f"{deed.by} drained {deed.node} over the drain of {before}"
                    continue
                order = given.get(deed.by)
                freed_at = freed.get(deed.node)
                if order is not None and freed_at is not None:
                    ordered_at = order[1].received_at
                    if ordered_at < freed_at and deed.at > freed_at + REACTION_S:
                        yield (
                            f"{deed.by}, ordered at {ordered_at:.0f}, drained {deed.node} at {deed.at:.0f}, although a "
                            f"person had returned it at {freed_at:.0f}"
                        )
                holder[deed.node] = deed.by
            case Resumed():
                before = holder.pop(deed.node, "")
                if deed.by.startswith(PERSON):
                    freed[deed.node] = deed.at
                elif before.startswith(PERSON):
                    yield f"{deed.by} lifted the drain of {before} from {deed.node}"
            case OrderTook() if deed.node:
                found = given.get(deed.order)
                if found is None or not isinstance(found[0], _ON_THE_MACHINE):
                    continue
                meant = found[0].instance_id
                if meant and deed.instance_id and meant != deed.instance_id:
                    yield f"{deed.kind} {deed.order} was meant for {meant} and hit {deed.instance_id} ({deed.node})"
            case _:
                pass


def _by_the_journal(history: History) -> Iterator[str]:
    """No repair and no return is ordered for a node that, by the newest word, somebody else has drained."""
    theirs: dict[str, str] = {}
    for step in history.steps:
        event = step.event
        if isinstance(event, e.NodeObserved):
            view = event.node
            counts = view.failed_check and history.policies.for_group(view.group).node.failed_prolog_is_a_fault
            if view.drained and not counts and not view.drain_reason.startswith(OWN_REASON):
                theirs[view.name] = view.drain_reason
            else:
                theirs.pop(view.name, None)
        elif isinstance(event, e.NodeVanished):
            theirs.pop(event.node, None)
        if isinstance(event, e.OperatorCommand):
            continue
        for order in step.orders:
            if isinstance(order, _NOT_ON_THEIRS) and order.node in theirs and order.cause == event.seq:
                reason = theirs[order.node]
                yield f"event {event.seq} orders {type(order).__name__} of {order.node}, drained by a person ({reason})"


def returns_rest_on_checks(history: History) -> Iterator[str]:
    """A node whose machine has failed its checks is returned by us only when it has passed them since."""
    policies = history.policies
    if not all(one.node.validate for one in (policies.site, *policies.groups.values())):
        return
    checks = _Checks()
    for step in history.steps:
        checks.take(step.event)
        for order in step.orders:
            if isinstance(order, o.ValidateNode):
                checks.asked[order.id] = order.node
            if not isinstance(order, o.ReturnNode) or order.node not in checks.failed:
                continue
            if order.cause == step.event.seq and not isinstance(step.event, e.OperatorCommand):
                failed_at, _ = checks.failed[order.node]
                yield f"event {step.event.seq} returns {order.node}, which failed its checks (event {failed_at})"


class _Checks:
    """Which nodes have failed the checks that were asked for."""

    def __init__(self) -> None:
        self.failed: dict[str, tuple[int, str]] = {}
        """Node -> the event that said so, and the machine that it was said of."""
        self.asked: dict[str, str] = {}
        """Order of checks that nobody has answered -> its node."""

    def take(self, event: e.AnyEvent) -> None:
        """Fold one event."""
        match event:
            case e.NodeValidated():
                if event.passed:
                    self.failed.pop(event.node, None)
                elif event.node in self.asked.values():
                    self.failed[event.node] = (event.seq, event.instance_id)
                self.asked = {order: node for order, node in self.asked.items() if node != event.node}
            case e.NodeObserved():
                known = self.failed.get(event.node.name)
                if known is not None and other_machine(known[1], event.node.instance_id):
                    del self.failed[event.node.name]
            case e.NodeVanished():
                self.failed.pop(event.node, None)
            case e.OrderFailed() | e.OrderDone():
                self.asked.pop(event.order, None)
            case _:
                pass


def no_drain_is_forgotten(history: History) -> Iterator[str]:
    """What we drained is in somebody's care: under repair, retired, or drained because a person asked for it."""
    held: dict[str, Drained] = {}
    for deed in history.deeds:
        if isinstance(deed, Drained):
            held[deed.node] = deed
        elif isinstance(deed, Resumed):
            held.pop(deed.node, None)
    states = {node.name: node for node in history.nodes}
    refused = {
        record.order.node
        for record in history.orders
        if isinstance(record.order, o.ReturnNode) and record.status is OrderStatus.FAILED
    }
    """What the scheduler would not return is left to whoever may, and people are told."""
    left = _left_to_people(history)
    for name, drain in sorted(held.items()):
        node = states.get(name)
        if drain.by.startswith(PERSON) or node is None or name in refused or left.get(name, 0.0) > drain.at:
            continue
        shown = node.before_unknown if node.state is NodeState.UNKNOWN else node.state
        if shown is NodeState.HEALTHY:
            yield f"{name} is healthy and still drained by {drain.by}"


def _left_to_people(history: History) -> dict[str, float]:
    """Node -> when people were last told of it, by a notice on its own topic."""
    return {
        order.node: step.event.received_at
        for step in history.steps
        for order in step.orders
        if isinstance(order, o.Notify) and order.node and order.topic == f"node:{order.node}"
    }
