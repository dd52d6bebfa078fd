"""A fenced node's way back: drained, repaired rung by rung, validated, held back if it flaps, returned or retired.

`nodes.py` hands over a node whose quarantine is done; orders' outcomes and `NodeValidated` drive it on. A node without
a recorded fault (its fault went away, its machine was swapped, our old drain was found) is only validated.
How time passes: one timer per node, `node:NAME`, replaced at each step; its firing means "look again".
"""

from __future__ import annotations

from holdfast.decide import incidents, ladder
from holdfast.decide.records import incident as incident_record
from holdfast.decide.records import node as node_record
from holdfast.decide.records.turn import Turn
from holdfast.model import orders as o
from holdfast.model import story
from holdfast.model.evidence import Finding, Remedy, Severity
from holdfast.model.machine import other_machine
from holdfast.model.orders import OrderStatus
from holdfast.model.policy import Mode
from holdfast.model.records import IncidentRecord, Mark, NodeRecord, NodeState, NodeTrigger, slug

FLAP_HOLD_MAX_S = 86400.0
REPAIR_ORDERS = (o.ResetGpu, o.RebootNode, o.ReplaceNode)


def incident_of(turn: Turn, node: NodeRecord) -> IncidentRecord | None:
    """The open incident that governs the node."""
    return turn.state.incidents.get(node.incident)


def occupied(turn: Turn, node: NodeRecord) -> list[str]:
    """Jobs that still run there, as far as anybody knows; nobody runs on a node that is gone."""
    if node.gone:
        return []
    running = set(turn.index.jobs_on.get(node.name, ()))
    for job_id in node.view.jobs:
        slugs = turn.index.by_id.get(job_id)
        if not slugs:
            running.add(job_id)
            continue
        newest = turn.state.jobs[max(slugs, key=lambda name: turn.state.jobs[name].key.generation)]
        if node.name in newest.view.nodes:
            running.add(slug(newest.key))
    return sorted(running)


def fenced(turn: Turn, node: NodeRecord) -> None:
    """Quarantine is done: new work is kept off it."""
    node_record.drain_is_ours(turn, node)
    if node.phase is not NodeState.QUARANTINED:
        return
    incident = incident_of(turn, node)
    if incident is not None:
        turn.stamp(incident, Mark.ISOLATED)
    turn.move_node(node, NodeTrigger.FENCED)
    turn.tell_all(incident, node, "it takes no new work.")
    if incident is not None:
        turn.timers.start(node.timer, turn.policy_for(node).waits.drain_s, incident.id)
    check_drained(turn, node)


def check_drained(turn: Turn, node: NodeRecord) -> None:
    """Go on as soon as nothing runs there any more. A node that a person drained by hand stays as it is."""
    incident = incident_of(turn, node)
    if node.phase is not NodeState.DRAINING or incident is None:
        return
    policy = turn.policy_for(node)
    if turn.orders.about(node.about, *REPAIR_ORDERS) or (policy.node.repair_when_drained and occupied(turn, node)):
        return
    node_record.try_rung(node, 0)
    if incidents.waits_for_domain(turn, node, incident):
        turn.tell(node, f"Its repair waits: it was lost together with others of {incidents.path_of(incident)}.")
        turn.timers.start(node.timer, policy.waits.unknown_s, incident.id)
        return
    if node.findings:
        _take_rung(turn, node, incident)
    else:
        validate(turn, node, "its fault is gone")


def is_held(turn: Turn, node: NodeRecord) -> bool:
    """Does its quarantine wait because of whose word it rests on?"""
    return any(
        record.waits_for and not record.is_approved for record in turn.orders.about(node.about, o.QuarantineNode)
    )


def look_closer(turn: Turn, node: NodeRecord) -> None:
    """Have a node checked whose quarantine waits for further evidence, once nothing runs there."""
    if node.phase is not NodeState.SUSPECT or not is_held(turn, node) or not turn.policy_for(node).node.validate:
        return
    away = node.silent or node.view.alive is False
    if not (away or occupied(turn, node) or turn.orders.about(node.about, o.ValidateNode)):
        turn.tell(node, "Nothing runs there: its checks begin.")
        turn.orders.issue(turn.order(o.ValidateNode, node, why=", ".join(node.findings[:3])))


def _findings_of(incident: IncidentRecord, node: NodeRecord) -> list[Finding]:
    return [finding for finding in incident.findings if finding.place.node == node.name]


def _rungs(turn: Turn, node: NodeRecord, incident: IncidentRecord) -> tuple[list[Remedy], str]:
    """The repairs to try, and the GPU at fault."""
    policy = turn.policy_for(node)
    found = _findings_of(incident, node)
    hints = [finding.remedy for finding in found if finding.remedy in ladder.REPAIRS]
    gravest = max(hints, key=list(Remedy).index) if hints else Remedy.NONE
    diagnosis = incident.diagnosis
    if diagnosis is not None and diagnosis.remedy in ladder.REPAIRS and node.name in diagnosis.nodes:
        gravest = diagnosis.remedy
    gpu = next((name for name in map(_gpu_of, found) if name), "")
    asked = node.findings[0] if node.findings else ""  # in an older journal perhaps a report of no such repair
    if asked.startswith(ladder.OPERATOR) and (wish := asked.removeprefix(ladder.OPERATOR)) in ladder.REPAIRS:
        return [Remedy(wish), Remedy.RETIRE], gpu
    rungs = ladder.repair_rungs(
        policy.node,
        always_replace=policy.always_replace,
        lemon=is_lemon(turn, node),
        hint=gravest,
        gpu=gpu,
        lost=node.gone,
    )
    return rungs, gpu


def planned(turn: Turn, node: NodeRecord, incident: IncidentRecord) -> Remedy:
    """The repair that it will get first, as things stand now; NONE when none is planned."""
    rungs, _ = _rungs(turn, node, incident)
    return rungs[0] if rungs and rungs[0] is not Remedy.RETIRE else Remedy.NONE


def is_rebooted_away(turn: Turn, node: NodeRecord) -> bool:
    """Does a reboot repair what is held against it? Not when its ladder begins with a graver repair."""
    incident = incident_of(turn, node)
    return incident is not None and planned(turn, node, incident) in {Remedy.RESET_GPU, Remedy.REBOOT}


def _gpu_of(finding: Finding) -> str:
    """The GPU that a finding names; the first one has the number 0."""
    place = finding.place
    return place.gpu_id or ("" if place.gpu is None else str(place.gpu))


def is_lemon(turn: Turn, node: NodeRecord) -> bool:
    """Has this machine been quarantined too often inside the window?"""
    rules = turn.policy_for(node).node
    return offences(turn, node) >= rules.lemon_offences > 0


def offences(turn: Turn, node: NodeRecord) -> int:
    """How often this machine was quarantined inside the window."""
    start = turn.now - turn.policy_for(node).node.lemon_window_s
    return sum(1 for at in node.offences if at > start)


def _take_rung(turn: Turn, node: NodeRecord, incident: IncidentRecord, before: str = "") -> None:
    """Order the repair at the node's rung; beyond the last one a person takes over. `before`: how that ended."""
    rungs, gpu = _rungs(turn, node, incident)
    rung = rungs[node.rung] if node.rung < len(rungs) else Remedy.RETIRE
    policy = turn.policy_for(node)
    if rung is Remedy.RETIRE:
        retire(turn, node, incident, _why_no_repair(turn, node, rungs, before))
        return
    why = f"{', '.join(node.findings[:3])}"
    order: o.ResetGpu | o.RebootNode | o.ReplaceNode
    if rung is Remedy.RESET_GPU:
        order = turn.order(o.ResetGpu, node, incident.id, rung, why, gpu=gpu)
    elif rung is Remedy.REBOOT:
        order = turn.order(o.RebootNode, node, incident.id, rung, why, boot_id=node.boot_id)
    else:
        order = turn.order(o.ReplaceNode, node, incident.id, rung, why)
    if turn.state.approved.pop(node.about, None) == [rung]:
        turn.orders.issue(order)  # the person who asked for it approved this order, and no other
        status = OrderStatus.PENDING
    else:
        status = turn.ask(order, policy, node.view.group)
    name = rung.replace("_", " ")
    if status is OrderStatus.PENDING:
        _enter_repair(turn, node, incident, rung)
    elif status is OrderStatus.PROPOSED:
        turn.tell_all(incident, node, f"waiting for a person to approve: {name}.")
    else:
        not_done(turn, node, incident, f"would be repaired by {name} (observe)")


def _why_no_repair(turn: Turn, node: NodeRecord, rungs: list[Remedy], before: str) -> str:
    """Which repairs were tried, or why there is none."""
    tried = [rung.replace("_", " ") for rung in rungs[: node.rung] if rung is not Remedy.RETIRE]
    if is_lemon(turn, node):
        count = offences(turn, node)
        often = "once" if count == 1 else f"{count} times"
        return f"it was quarantined {often}, so no further repair is tried"
    if not tried:
        return "the ladder of its policy has no repair for this"
    return f"no repair is left to try after {story.listed(tried)}{f' ({before})' if before else ''}"


def _held_against(incident: IncidentRecord | None, node: NodeRecord) -> str:
    """Its faults in words, three at most; what has no finding any more by its rule."""
    found = _findings_of(incident, node) if incident is not None else []
    told = {finding.rule: finding.summary or finding.rule for finding in found}
    return ", ".join(dict.fromkeys(told.get(rule, rule) for rule in node.findings[:3]))


def not_done(turn: Turn, node: NodeRecord, incident: IncidentRecord, why: str) -> None:
    """Its repair may not be done: a drained node waits for a person; one in the middle of repair is handed to one."""
    if node.phase in {NodeState.REPAIRING, NodeState.VALIDATING}:
        retire(turn, node, incident, why)
    else:
        told = f"{why}; it stays as it is."
        turn.tell(node, told)
        incident_record.node_settled(turn, incident, node, told)


def _enter_repair(turn: Turn, node: NodeRecord, incident: IncidentRecord, rung: Remedy) -> None:
    state = node.phase
    if state is NodeState.DRAINING:
        turn.move_node(node, NodeTrigger.REPAIR)
    elif state is NodeState.VALIDATING:
        turn.move_node(node, NodeTrigger.FAILED_CHECK)
    incident_record.tried(turn, incident, rung)
    turn.tell_all(incident, node, f"repair by {rung.replace('_', ' ')} begins.")
    turn.timers.start(node.timer, turn.policy_for(node).waits.repair_s, incident.id)


def approved(turn: Turn, node: NodeRecord, order: o.ResetGpu | o.RebootNode | o.ReplaceNode) -> None:
    """A person approved the proposed repair, and it has been ordered."""
    incident = incident_of(turn, node)
    if incident is not None:
        _enter_repair(turn, node, incident, order.remedy)


def next_rung(turn: Turn, node: NodeRecord, why: str) -> None:
    """This repair did not help: try the next one."""
    try_rung(turn, node, node.rung + 1, why)


def try_rung(turn: Turn, node: NodeRecord, rung: int, why: str) -> None:
    """Repair it by this rung of its ladder."""
    incident = incident_of(turn, node)
    if incident is None:
        retire(turn, node, None, f"{why}, and nobody asked for its repair")
        return
    turn.tell_all(incident, node, f"{why}.")
    node_record.try_rung(node, rung)
    _take_rung(turn, node, incident, why)


def repair_done(turn: Turn, node: NodeRecord, order: o.NodeOrder) -> None:
    """The repair's order is done. It is believed when the node shows another boot or machine, or cannot show any."""
    if node.phase is not NodeState.REPAIRING:
        return
    stale = (isinstance(order, o.ReplaceNode) and order.instance_id and node.instance_id == order.instance_id) or (
        isinstance(order, o.RebootNode) and order.boot_id and node.boot_id == order.boot_id
    )
    if stale:
        turn.tell(node, "repaired, by the word of who did it; waiting until it shows another identity.")
        turn.timers.start(node.timer, turn.policy_for(node).waits.order_s, node.incident)
        return
    repaired(turn, node)


def repaired(turn: Turn, node: NodeRecord) -> None:
    """It is back from repair: prove it."""
    incident = incident_of(turn, node)
    if incident is not None:
        turn.stamp(incident, Mark.NODE_REPAIRED)
    node_record.runs(turn, node)
    node_record.clean_since(node, turn.said_at)
    validate(turn, node, "repaired")


def shows_itself(turn: Turn, node: NodeRecord) -> None:
    """It shows another boot or machine, or its scheduler has it back after it was down: a repair that is done shows."""
    if node.phase is NodeState.REPAIRING and not turn.orders.about(node.about, *REPAIR_ORDERS):
        repaired(turn, node)


def is_replacing(turn: Turn, node: NodeRecord) -> bool:
    """Is our own replacement of its machine under way, or done and not shown yet?"""
    incident = incident_of(turn, node)
    if incident is None or node.phase is not NodeState.REPAIRING:
        return False
    rungs, _ = _rungs(turn, node, incident)
    return node.rung < len(rungs) and rungs[node.rung] is Remedy.REPLACE


def validate(turn: Turn, node: NodeRecord, why: str) -> None:
    """It must pass the checks before it takes work."""
    turn.move_node(node, NodeTrigger.CHECK)
    incident = incident_of(turn, node)
    rules = turn.policy_for(node)
    if not rules.node.validate:
        turn.tell_all(incident, node, f"{why}; policy asks for no check.")
        node_record.clean_since(node, turn.said_at)
        give_back(turn, node)
        return
    turn.tell_all(incident, node, f"{why}; its checks begin.")
    check_again(turn, node, why)


def check_again(turn: Turn, node: NodeRecord, why: str = "the machine was swapped") -> None:
    """Order the checks of the machine that is there now."""
    turn.orders.issue(turn.order(o.ValidateNode, node, why=why))
    turn.timers.start(node.timer, turn.policy_for(node).waits.validate_s, node.incident)


def validated(turn: Turn, node: NodeRecord, *, passed: bool, instance_id: str, detail: str) -> None:
    """The checks' outcome. One for another machine, or that nobody waits for, changes nothing."""
    open_checks = turn.orders.about(node.about, o.ValidateNode)
    if node.phase is not NodeState.VALIDATING or not open_checks:
        return
    if other_machine(instance_id, node.instance_id, node.agent_instance_id):
        return
    for record in open_checks:
        turn.orders.settle(record.order.id, OrderStatus.DONE, detail)
    incident = incident_of(turn, node)
    if not passed:
        next_rung(turn, node, f"it failed its checks{': ' + detail if detail else ''}")
        return
    node_record.clean_since(node, turn.said_at)
    turn.tell_all(incident, node, "it passed its checks.")
    hold_s = _flap_hold(turn, node)
    if hold_s > 0:
        turn.tell_all(incident, node, f"it has failed before, so it is held back for {story.seconds(hold_s)}.")
        turn.timers.start(node.timer, hold_s, node.incident)
    else:
        give_back(turn, node)


def _flap_hold(turn: Turn, node: NodeRecord) -> float:
    """How long a node that came back and failed again is kept from work: doubled each time."""
    times = offences(turn, node)
    rules = turn.policy_for(node).node
    return min(FLAP_HOLD_MAX_S, rules.flap_hold_s * 2.0 ** (times - 2)) if times >= 2 else 0.0


def give_back(turn: Turn, node: NodeRecord) -> None:
    """Have it take work again; only a drain of ours is lifted."""
    turn.timers.cancel(node.timer)
    if not node.drained_by_us and node.view.drained:
        returned(turn, node)
        return
    if not turn.orders.about(node.about, o.ReturnNode):
        turn.orders.issue(turn.order(o.ReturnNode, node))


def returned(turn: Turn, node: NodeRecord) -> None:
    """It takes work again."""
    incident = incident_of(turn, node)
    if not turn.can(node, NodeTrigger.RETURN):
        return
    turn.move_node(node, NodeTrigger.RETURN)
    node_record.clean(turn, node, node.clean_at)  # what has broken since its checks is news
    turn.tell(node, "It takes work again.")
    if node.view.alive is False:
        # It died after it had passed its checks: while it was validated nobody took note.
        turn.timers.start(f"silent:{node.name}", turn.policy_for(node).waits.unknown_s)
    if incident is not None:
        turn.stamp(incident, Mark.NODE_RETURNED)
        turn.notify(incident.id, Severity.INFO, f"{node.name} is back", "It takes work again.", node=node.name)
        incident_record.node_settled(turn, incident, node, "it takes work again.")


def retire(turn: Turn, node: NodeRecord, incident: IncidentRecord | None, why: str) -> None:
    """Hand it to a person, with its faults. It stays out of service in every mode, since it is drained already."""
    policy = turn.policy_for(node)
    faults = _held_against(incident, node)
    why = f"{faults}; {why}" if faults else why
    order = turn.order(o.RetireNode, node, remedy=Remedy.RETIRE, why=why)
    if turn.mode(policy, node.view.group, Remedy.RETIRE, node.incident) is Mode.ACT:
        turn.orders.issue(order)
    if turn.can(node, NodeTrigger.RETIRE):
        turn.move_node(node, NodeTrigger.RETIRE)
    turn.timers.cancel(node.timer)
    topic = node.incident or node.about
    number = _retired(turn, incident)
    title = f"{node.name} needs a person{f' ({number} nodes by now)' if number > 1 else ''}"
    if number <= incidents.TOLD_EACH or number.bit_count() == 1:  # of many, those by which their number has doubled
        turn.notify(topic, Severity.ERROR, title, f"{node.name}: {why}", node=node.name, asks=True)
    turn.tell(node, f"Handed to a person: {why}.")
    if incident is not None:
        incident_record.tried(turn, incident, Remedy.RETIRE)
        incident_record.node_settled(turn, incident, node, f"handed to a person: {why}.")


def _retired(turn: Turn, incident: IncidentRecord | None) -> int:
    """How many nodes of the incident are out of service for good."""
    known = (turn.state.nodes.get(name) for name in incident.nodes) if incident is not None else ()
    return sum(node is not None and node.phase is NodeState.RETIRED for node in known)


def failed(turn: Turn, node: NodeRecord, order: o.NodeOrder, why: str) -> None:
    """An order about a node in repair could not be carried out."""
    incident = incident_of(turn, node)
    state = node.phase
    if isinstance(order, REPAIR_ORDERS) and state is NodeState.REPAIRING:
        next_rung(turn, node, f"repair by {order.remedy.replace('_', ' ')} failed: {why}")
    elif isinstance(order, o.ValidateNode) and state is NodeState.VALIDATING:
        # That a check cannot be run says nothing against the node, and nothing for it either.
        retire(turn, node, incident, f"its checks could not be run: {why}")
    elif isinstance(order, o.ReturnNode):
        turn.tell_all(incident, node, f"it could not be returned: {why}. Whoever drained it decides.")
        if turn.can(node, NodeTrigger.RETURN):
            turn.move_node(node, NodeTrigger.RETURN)
        node_record.clean(turn, node, node.clean_at)
        if incident is not None:
            incident_record.node_settled(turn, incident, node, "left to whoever drained it.")


def timer(turn: Turn, node: NodeRecord) -> None:
    """`node:NAME` fired: look again at what is waited for."""
    state = node.phase
    waits = turn.policy_for(node).waits
    incident = incident_of(turn, node)
    pending = turn.orders.about(node.about, *REPAIR_ORDERS, o.ValidateNode)
    if state is NodeState.DRAINING and incident is not None:
        who = story.listed(occupied(turn, node))
        turn.notify(
            incident.id,
            Severity.WARNING,
            f"{node.name} still does not drain",
            f"Its repair waits for what still runs there: {who}.",
            node=node.name,
        )
        turn.timers.start(node.timer, waits.drain_s, incident.id)
        check_drained(turn, node)
    elif state is NodeState.REPAIRING:
        if not pending:
            repaired(turn, node)
            return
        for record in pending:
            turn.orders.settle(record.order.id, OrderStatus.FAILED, "no outcome in time")
        next_rung(turn, node, f"its repair gave no outcome in {story.seconds(waits.repair_s)}")
    elif state is NodeState.VALIDATING:
        if not pending:
            give_back(turn, node)
            return
        for record in pending:
            turn.orders.settle(record.order.id, OrderStatus.FAILED, "no outcome in time")
        retire(turn, node, incident, f"its checks gave no outcome in {story.seconds(waits.validate_s)}")
