"""What happens to the record of a node and to the brake of its group. Its state is `Turn.move_node`.

Imported by the flows as `node_record`. The time is the event's.
"""

from __future__ import annotations

from collections import Counter

from holdfast.decide.records.turn import Turn
from holdfast.model.cluster import NodeView
from holdfast.model.policy import Brake
from holdfast.model.records import BrakeRecord, NodeRecord, NodeState, NodeTrigger, Rested

ROUNDING_S = 0.01
"""Looked at this much after the window has moved on, so that rounding does not make it look a moment too early."""

WITNESSES_MAX = 8
"""Witnesses kept for each rule: the next one adds nothing."""


# --- the node ---------------------------------------------------------------------------------------------------------


def create(turn: Turn, view: NodeView) -> NodeRecord:
    """A node is seen for the first time."""
    node = NodeRecord(
        name=view.name,
        view=view,
        since=turn.now,
        first_seen_at=turn.now,
        boot_id=view.boot_id,
        instance_id=view.instance_id,
        gone=view.alive is False,
        heard=turn.in_allocation,  # a launcher hears no agents
    )
    turn.state.nodes[view.name] = node
    count_nodes(turn, view.group, 1)
    turn.changes.add(node)
    return node


def seen(turn: Turn, node: NodeRecord, view: NodeView) -> NodeView:
    """Keep how it is shown now. Returns how it was shown before."""
    old, node.view = node.view, view
    turn.changes.add(node)
    return old


def left(turn: Turn, node: NodeRecord) -> None:
    """It is no longer in the cluster."""
    node.left_at = turn.now
    count_nodes(turn, node.view.group, -1)
    turn.tell(node, "It left the cluster.")
    turn.state.context.pop(node.about, None)
    if node.name in turn.state.fence_failed:
        turn.state.fence_failed.remove(node.name)
    del turn.state.nodes[node.name]


def identified(
    turn: Turn, node: NodeRecord, boot_id: str, instance_id: str, *, down: bool, by_agent: bool
) -> tuple[bool, bool]:
    """Take note of machine and boot (empty: not known). Returns whether each is another one than before.

    A scheduler that calls the node `down` has not seen it run: another boot alone does not bring it back.
    """
    machine = _is_other(node, "instance_id", instance_id, apart=by_agent)
    boot = _is_other(node, "boot_id", boot_id)
    if machine and not by_agent:
        node.offences = []
        if ":" not in instance_id:
            node.agent_instance_id = ""  # the former machine's
    if machine or boot:
        node.gone = node.gone and down and not machine
    if machine or boot or by_agent:
        turn.changes.add(node)
    return machine, boot


def _is_other(node: NodeRecord, kind: str, value: str, *, apart: bool = False) -> bool:
    """Note an identity; True when it is another than before.

    A scheduler's own ids have a prefix (`slurm:`) and an agent's have none: each is compared with its like. Orders
    carry the scheduler's where there is one, since it is the scheduler's adapter that has to tell a stale order.
    With `apart` it is kept apart in any case: an agent's claim of another machine must not make an order stale.
    """
    own = f"agent_{kind}" if apart or (":" in getattr(node, kind) and ":" not in value) else kind
    before = getattr(node, own)
    if not value or before == value:
        return False
    if own == kind and before and ":" in value and ":" not in before:
        setattr(node, f"agent_{kind}", before)
        before = ""
    setattr(node, own, value)
    return bool(before)


def agent_spoke(turn: Turn, node: NodeRecord) -> None:
    """Its agent has said something."""
    if not node.heard:
        node.heard = True
        turn.changes.add(node)


def fell_silent(turn: Turn, node: NodeRecord) -> None:
    """Nobody has heard of it for a while."""
    node.silent = True
    if node.state is not NodeState.UNKNOWN:
        turn.move_node(node, NodeTrigger.SILENT)


def heard(turn: Turn, node: NodeRecord) -> None:
    """It is heard again, and shows the state that silence covered."""
    node.silent = False
    turn.timers.cancel(f"silent:{node.name}")
    if node.state is NodeState.UNKNOWN:
        turn.move_node(node, NodeTrigger(f"heard_{node.before_unknown}"))
    turn.tell(node, "It is heard again.")


def open_to_drills(turn: Turn, node: NodeRecord, drill_ok: bool) -> None:
    """Its agent says whether drills may break it."""
    node.drill_ok = drill_ok
    turn.changes.add(node)


def runs(turn: Turn, node: NodeRecord) -> None:
    """What spoke for its loss is overcome."""
    node.gone = False
    turn.changes.add(node)


def lost(turn: Turn, node: NodeRecord) -> None:
    """There is evidence that it does not run."""
    node.gone = True
    turn.changes.add(node)


def cleared(turn: Turn, node: NodeRecord) -> None:
    """It runs, and nothing is held against it any more."""
    node.findings, node.witnesses = [], {}
    turn.state.approved.pop(node.about, None)
    runs(turn, node)


def accuse(node: NodeRecord, rule: str) -> None:
    """A fault by this rule is held against it."""
    if rule not in node.findings:
        node.findings.append(rule)


def accused_by(node: NodeRecord, rule: str, witness: str) -> None:
    """This witness holds the rule's fault against it."""
    known = node.witnesses.setdefault(rule, [])
    if witness not in known and len(known) < WITNESSES_MAX:
        known.append(witness)


def witnesses(node: NodeRecord) -> set[str]:
    """All who hold something against it, as far as that was noted."""
    return {witness for known in node.witnesses.values() for witness in known}


def acquit(node: NodeRecord, rule: str) -> None:
    """The fault by this rule is gone."""
    node.findings.remove(rule)
    node.witnesses.pop(rule, None)
    if not node.findings:
        node.witnesses = {}


def repair_asked(node: NodeRecord, rule: str) -> None:
    """A person's word is all that is held against it now."""
    node.findings, node.witnesses = [rule], {}


def clean_since(node: NodeRecord, at: float) -> None:
    """It counts as clean since then: older evidence about it is stale."""
    node.clean_at = at


def drain_is_ours(turn: Turn, node: NodeRecord) -> None:
    """New work is kept off it by our order, and whoever lifts the drain lifts ours."""
    node.drained_by_us = True
    turn.changes.add(node)


def try_rung(node: NodeRecord, rung: int) -> None:
    """Its repair stands at this place of its ladder."""
    node.rung = rung


def quarantined(turn: Turn, node: NodeRecord, window_s: float) -> None:
    """Its quarantine is ordered; the brake of its group and its own history count it."""
    record = brake_of(turn, node.view.group)
    brake_took(record, node.name, turn.now)
    turn.changes.add(record)
    turn.move_node(node, NodeTrigger.QUARANTINE)
    node.offences = [*[at for at in node.offences if at > turn.now - window_s], turn.now]


def fence_failed(turn: Turn, node: NodeRecord) -> None:
    """It is suspect, and could not be quarantined."""
    if node.phase is NodeState.SUSPECT and node.name not in turn.state.fence_failed:
        turn.state.fence_failed.append(node.name)
    turn.unfenced.append(node.name)


def clean(turn: Turn, node: NodeRecord, since: float) -> None:
    """Nothing is held against it any more; evidence about it from before that time is stale."""
    turn.timers.cancel(node.timer)
    turn.cleaned.append(node.name)
    node.findings, node.witnesses = [], {}
    clean_since(node, since)
    node.rung, node.drained_by_us, node.gone = 0, False, False
    turn.changes.add(node)


# --- the brake of a group ---------------------------------------------------------------------------------------------


def brake_of(turn: Turn, group: str) -> BrakeRecord:
    """The brake of a group, made when it is first asked for."""
    record = turn.state.brakes.get(group)
    if record is None:
        record = turn.state.brakes[group] = BrakeRecord(group=group)
    return record


def brake_limit(brake: Brake, record: BrakeRecord) -> int:
    """How many nodes of the group may be quarantined inside the window: the smaller of both limits, at least one."""
    share = int(record.nodes * brake.max_percent / 100.0)
    return max(1 if brake.max_nodes > 0 and brake.max_percent > 0 else 0, min(brake.max_nodes, share))


def prune_brake(brake: Brake, record: BrakeRecord, now: float) -> None:
    """Forget quarantines that have left the window."""
    start = now - brake.window_s
    if record.recent and record.recent[0] <= start:
        record.recent = [at for at in record.recent if at > start]
        record.recent_nodes = record.recent_nodes[-len(record.recent) :] if record.recent else []


def brake_allows(brake: Brake, record: BrakeRecord, node: str, now: float) -> bool:
    """May this node be quarantined now? One that was lately takes no further place, and has as many turns as places."""
    prune_brake(brake, record, now)
    taken = record.quarantined
    return (node in taken or not record.tripped_at) and _has_room(brake_limit(brake, record), taken, node)


def _has_room(limit: int, taken: Counter[str], node: str) -> bool:
    return taken[node] < limit if node in taken else len(taken) < limit


def brake_took(record: BrakeRecord, node: str, now: float) -> None:
    """This node was quarantined."""
    record.recent.append(now)
    record.recent_nodes.append(node)


def brake_hold_back(record: BrakeRecord, node: str, now: float) -> bool:
    """Have this node wait. True when people do not know yet: the brake trips, or the node has used up its turns."""
    known, was_tripped = node in record.waiting, record.tripped_at
    if not known:
        record.waiting.append(node)
    keep_tripped(record, now)
    return not known if node in record.quarantined else not was_tripped


def keep_tripped(record: BrakeRecord, now: float) -> None:
    """It is tripped, since now or since before, while a node waits for a place."""
    taken = record.quarantined
    waits = any(name not in taken for name in record.waiting)
    record.tripped_at = (record.tripped_at or now) if waits else 0.0


def reopen_brake(brake: Brake, record: BrakeRecord, now: float) -> list[str]:
    """The calm spell is over, and the brake closes: which waiting nodes may be quarantined now."""
    prune_brake(brake, record, now)
    limit, taken = brake_limit(brake, record), record.quarantined
    freed = []
    for name in record.waiting:
        if _has_room(limit, taken, name):
            freed.append(name)
            taken[name] += 1
    record.waiting = [name for name in record.waiting if name not in freed]
    record.tripped_at = 0.0
    return freed


def next_brake_look(brake: Brake, record: BrakeRecord, now: float) -> float:
    """Seconds until it is worth trying again."""
    limit, taken = brake_limit(brake, record), record.quarantined
    if not record.waiting or not record.recent or any(_has_room(limit, taken, name) for name in record.waiting):
        return brake.calm_s
    return max(brake.calm_s, record.recent[0] + brake.window_s - now + ROUNDING_S)


def reset_brake_record(record: BrakeRecord) -> list[str]:
    """By hand: the window starts anew. Returns the nodes that waited."""
    freed = record.waiting
    record.waiting, record.recent, record.recent_nodes, record.tripped_at = [], [], [], 0.0
    for rested in record.reporters.values():
        rested.nodes, rested.requeues = {}, []
    return freed


def unbrake(turn: Turn, node: NodeRecord, group: str | None = None) -> bool:
    """It waits for the brake no longer. False when it did not wait."""
    name = node.view.group if group is None else group
    record = turn.state.brakes.get(name)
    if record is None or node.name not in record.waiting:
        return False
    record.waiting.remove(node.name)
    keep_tripped(record, turn.now)
    if not record.waiting:
        turn.timers.cancel(f"brake:{name}")
    turn.changes.add(record)
    return True


def rested_on(turn: Turn, group: str, reporter: str, window_s: float) -> Rested:
    """What rests on this reporter's word alone; what has left the window is forgotten."""
    record = brake_of(turn, group)
    start = turn.now - window_s
    for name, rested in list(record.reporters.items()):
        rested.nodes = {node: at for node, at in rested.nodes.items() if at > start}
        rested.requeues = [at for at in rested.requeues if at > start]
        if not (rested.nodes or rested.requeues or rested.held):
            del record.reporters[name]
    return record.reporters.get(reporter) or Rested()


def _rests(turn: Turn, group: str, reporter: str) -> Rested:
    record = brake_of(turn, group)
    turn.changes.add(record)
    return record.reporters.setdefault(reporter, Rested())


def rest_node(turn: Turn, group: str, reporter: str, node: str) -> None:
    """A quarantine rests on this reporter's word alone."""
    _rests(turn, group, reporter).nodes[node] = turn.now


def rest_requeue(turn: Turn, group: str, reporter: str) -> None:
    """So does the requeue of a running job."""
    _rests(turn, group, reporter).requeues.append(turn.now)


def rest_held(turn: Turn, group: str, reporter: str, order: str) -> None:
    """This proposed order waits because one reporter alone stands behind it."""
    _rests(turn, group, reporter).held.append(order)


def count_nodes(turn: Turn, group: str, step: int) -> None:
    """Count a node of a group in or out."""
    record = brake_of(turn, group)
    record.nodes += step
    turn.changes.add(record)
