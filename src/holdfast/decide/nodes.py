"""Nodes: what the scheduler, agents and silence say of them, suspicion, quarantine under brake, ownership.

`engine.py` hands events in; `findings.py` calls `suspect`. What comes after the fence is `repair.py`. How time passes:
`silent:NAME` bounds silence, `brake:GROUP` reopens a tripped brake; both come back as `TimerFired`.
"""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.decide import incidents, repair, trust
from holdfast.decide.records import incident as incident_record
from holdfast.decide.records import node as node_record
from holdfast.decide.records.turn import Turn
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model import story
from holdfast.model.cluster import NodeView
from holdfast.model.evidence import Finding, Remedy, Severity
from holdfast.model.machine import other_machine
from holdfast.model.orders import OrderStatus
from holdfast.model.policy import Mode
from holdfast.model.records import (
    BrakeRecord,
    IncidentRecord,
    JobRecord,
    Mark,
    NodeRecord,
    NodeState,
    NodeTrigger,
    OrderRecord,
)

OWN_REASON = "[holdfast]"
"""Prefix of the drain reasons that we set, and the only ones that we lift."""
CHECKERS = ("[holdfast check]", "NHC")
"""Prefixes of the drain reasons of programs that lift their own drains: `deploy/slurm/healthcheck.sh` and LBNL NHC."""
_WAITING = frozenset({NodeState.SUSPECT, NodeState.QUARANTINED, NodeState.DRAINING})
FAILED_CHECK = "node.failed_check"
"""The rule of a node that the scheduler drained for a failed check of its own."""
BRAKE = "the brake of its group holds it back until that closes"
"""Why a quarantine that people have approved is not given yet."""
LOST_ALONE = "it did not come back with the others of its domain"


def is_ours(view: NodeView) -> bool:
    """Is its drain in our hands: set by us, by a person who asks for a repair with it, or for a failed check there?"""
    return view.drain_reason.startswith(OWN_REASON) or bool(view.asked or view.failed_check)


def is_checkers(view: NodeView) -> bool:
    """Is it drained by a program that lifts its drain itself when its own checks pass?"""
    return view.drained and view.drain_reason.startswith(CHECKERS)


def record_of(turn: Turn, name: str) -> NodeRecord:
    """The node's record; an agent may speak of a node before the scheduler does."""
    node = turn.state.nodes.get(name)
    if node is None:
        node = node_record.create(turn, NodeView(name=name))
    return node


def observed(turn: Turn, view: NodeView) -> tuple[str, str]:
    """Take the node as it is shown now.

    Returns the evidence that the node is gone, and the scheduler's check that has newly failed where policy counts one
    as a fault; empty texts when there is neither.
    """
    if turn.in_allocation:
        return ("it no longer answers" if view.alive is False else ""), ""
    if view.failed_check and not turn.policies.for_group(view.group).node.failed_prolog_is_a_fault:
        view = replace(view, failed_check="")
    node = turn.state.nodes.get(view.name)
    if node is None:
        _found_drained(turn, node_record.create(turn, view))
        return "", ""
    failed_check = "" if node.view.failed_check else view.failed_check
    return _seen_again(turn, node, view), failed_check


def _seen_again(turn: Turn, node: NodeRecord, view: NodeView) -> str:
    """Return the evidence that a known node is gone; an empty text when it is not."""
    old = node_record.seen(turn, node, view)
    if old.group != view.group:
        waited = node_record.unbrake(turn, node, old.group)
        node_record.count_nodes(turn, old.group, -1)
        node_record.count_nodes(turn, view.group, 1)
        incident = repair.incident_of(turn, node)
        if waited and incident is not None:
            _fence_waiting(turn, node, incident)  # the new group's brake decides now
    same_machine = not identity(turn, node, view.boot_id, view.instance_id, down=view.alive is False)
    if view.warnings and view.warnings != old.warnings:
        _warn(turn, node)
    taken_back = _whose_drain(turn, node, old, same_machine=same_machine)
    if view.alive is True and node.gone and old.alive is not True:
        node_record.runs(turn, node)
        turn.tell(node, "The scheduler says that it runs again.")
        back(turn, node, as_before=True)
    if old == NodeView(name=view.name) and node.phase is NodeState.HEALTHY and view.alive is not False:
        _found_drained(turn, node)  # its agent spoke before the scheduler showed it
    if view.alive is True and old.alive is False:
        repair.shows_itself(turn, node)
    if node.phase is NodeState.DRAINING:
        repair.check_drained(turn, node)
    incident = repair.incident_of(turn, node)
    if node.phase is NodeState.SUSPECT and incident is not None and is_checkers(old) and not is_checkers(view):
        quarantine(turn, node, incident, ", ".join(node.findings[:3]))  # what we know stands, whatever the checker says
    repair.look_closer(turn, node)
    died = old.alive is not False or taken_back
    if view.alive is False and died and not node.gone and node.phase is not NodeState.REPAIRING:
        return f"the scheduler says so ({view.state_text or 'not responding'})"
    return ""


def _whose_drain(turn: Turn, node: NodeRecord, old: NodeView, *, same_machine: bool) -> bool:
    """A person's word about a drain, ours or theirs, wins. True when one took the node back into service."""
    if node.view.drained:
        if same_machine and node.drained_by_us and _is_theirs(node.view):
            _taken_over(turn, node)
        elif same_machine and not old.drained and _is_being_fenced(turn, node):
            node_record.drain_is_ours(turn, node)  # seen before the order's outcome: whoever lifts it now lifts ours
        elif same_machine and not old.drained and node.phase is NodeState.HEALTHY and not node.incident:
            _found_drained(turn, node)  # a quarantine that was taken back took effect after all
    elif old.drained:
        if node.drained_by_us:
            # What is retired is brought back by people alone, who may have rebooted it for that.
            taken_back = (same_machine or node.phase is NodeState.RETIRED) and not _being_returned(turn, node)
        else:
            taken_back = _ends_the_case(turn, node, old)
        if taken_back:
            _resumed_by_person(turn, node)
            return True
        dead = node.view.alive is False and old.alive is False
        return dead and node.phase is NodeState.HEALTHY and not node.incident  # theirs, and it may be given out now
    return False


def _ends_the_case(turn: Turn, node: NodeRecord, old: NodeView) -> bool:
    """Does whoever lifts this drain, which was not ours, take the node back from us as well?"""
    if is_checkers(old):
        return False  # that its checks pass again says nothing of what is held against the node here
    if node.phase is NodeState.QUARANTINED:  # had our order been quicker, it would be ours that a person lifts
        return not old.drain_reason.startswith(OWN_REASON)
    if node.phase is not NodeState.SUSPECT:
        return False
    whole_case = bool(old.failed_check) and set(node.findings) == {FAILED_CHECK}  # and the brake holds it
    return not node.incident or whole_case or _is_observed(turn, node)


def _is_being_fenced(turn: Turn, node: NodeRecord) -> bool:
    """Does its drain show the effect of a quarantine that is still under way?"""
    is_own = node.view.drain_reason.startswith(OWN_REASON)
    return is_own and turn.orders.under_way(node.about, o.QuarantineNode)


def _is_observed(turn: Turn, node: NodeRecord) -> bool:
    """Return whether the node is suspect, and its own fence is left to people because policy says observe."""
    incident = repair.incident_of(turn, node)
    if node.phase is not NodeState.SUSPECT or incident is None:
        return False
    waits = turn.orders.about(node.about) or node.name in node_record.brake_of(turn, node.view.group).waiting
    return incident.is_observed(node.about, Remedy.QUARANTINE) and not waits


def _is_theirs(view: NodeView) -> bool:
    """Does its drain carry somebody else's reason?"""
    return view.drained and bool(view.drain_reason) and not is_ours(view)


def _found_drained(turn: Turn, node: NodeRecord) -> None:
    """A drain of ours that nobody has in mind any more: nobody else will lift it, so it is checked and lifted."""
    if not (node.view.drained and node.view.drain_reason.startswith(OWN_REASON)):
        return
    said = f"It was found drained by us ({node.view.drain_reason})"
    if turn.mode(turn.policy_for(node), node.view.group, Remedy.QUARANTINE) is Mode.OBSERVE:
        left = "Policy says observe, so whoever wants it back returns it."
        turn.tell(node, f"{said}. {left}")
        turn.notify(node.about, Severity.WARNING, f"{node.name} is drained by us, and left", left, node=node.name)
        return
    turn.move_node(node, NodeTrigger.QUARANTINE)
    turn.move_node(node, NodeTrigger.FENCED)
    node_record.drain_is_ours(turn, node)
    turn.tell(node, f"{said}.")
    repair.validate(turn, node, "our old drain was found")


def _warn(turn: Turn, node: NodeRecord) -> None:
    for words in node.view.warnings:
        turn.tell(node, f"{words[0].upper()}{words[1:]}.")
        turn.notify(node.about, Severity.WARNING, f"{node.name}: nearly understood", f"{words}.", node=node.name)


def identity(
    turn: Turn, node: NodeRecord, boot_id: str, instance_id: str, *, down: bool = False, by_agent: bool = False
) -> bool:
    """Take note of boot and machine. True when either is another one than before.

    Only the scheduler's word makes a swap, or an agent's where we are replacing the machine ourselves. Else its claim
    of another machine changes nothing that is held against the node and nothing that people approved, since whoever has
    its token can claim it; its claim of another boot clears, where policy says observe, only what a reboot repairs.

    Args:
        turn: the event's turn.
        node: whose they are.
        boot_id: its boot; empty: not known.
        instance_id: its machine; empty: not known.
        down: said by a scheduler that cannot reach it. A boot alone does not bring such a node back.
        by_agent: said by its agent.
    """
    by_agent = by_agent and not repair.is_replacing(turn, node)
    machine, boot = node_record.identified(turn, node, boot_id, instance_id, down=down, by_agent=by_agent)
    if not (machine or boot):
        return False
    is_swap = machine and is_confirmed(by_agent=by_agent)
    if is_swap or boot:
        turn.tell(node, f"It is another machine now ({instance_id})." if is_swap else "It has booted anew.")
    else:
        turn.tell(node, f"Its agent names another machine ({instance_id}); the scheduler does not.")
    booting = down and not machine
    if node.state is NodeState.UNKNOWN:
        heard(turn, node.name)
    if node.phase is NodeState.REPAIRING:
        repair.shows_itself(turn, node)
    elif is_swap:
        _swapped(turn, node)
    elif boot and not booting and _is_observed(turn, node) and (not by_agent or repair.is_rebooted_away(turn, node)):
        _well_again(turn, node, "it has booted anew, so what was seen before is stale")
    elif not booting:
        back(turn, node)
    return True


def is_confirmed(*, by_agent: bool) -> bool:
    """Does somebody else than the node's agent say that another machine answers to its name?"""
    return not by_agent


def _swapped(turn: Turn, node: NodeRecord) -> None:
    """Another machine answers to the name: what was held against the old one is stale."""
    state = node.phase
    node_record.clean_since(node, turn.now)
    if state is NodeState.HEALTHY:
        _found_drained(turn, node)  # its return failed as stale: the adapter saw the new machine before we did
        return
    if node.drained_by_us and _is_theirs(node.view):
        _taken_over(turn, node)  # by the look that shows the new machine
        return
    turn.orders.withdraw(node.about, "the machine was swapped for another")
    if state is NodeState.VALIDATING:
        repair.check_again(turn, node)
        return
    node_record.cleared(turn, node)
    node_record.unbrake(turn, node)
    if state is NodeState.QUARANTINED and node.drained_by_us:
        turn.move_node(node, NodeTrigger.FENCED)  # its fence was seen, and the order whose outcome would say so is gone
    if state is NodeState.SUSPECT or not node.drained_by_us:
        _clear(turn, node, "the machine that was suspected is gone")
    elif turn.can(node, NodeTrigger.CHECK):
        repair.validate(turn, node, "the machine was swapped, so the old reason is stale")


def _being_returned(turn: Turn, node: NodeRecord) -> bool:
    """Our own order lifts the drain; a controller that was killed meanwhile sees that before it hears the outcome."""
    return turn.orders.under_way(node.about, o.ReturnNode)


def _resumed_by_person(turn: Turn, node: NodeRecord) -> None:
    turn.orders.withdraw(node.about, "a person took the node back into service")
    _clear(turn, node, "a person took it back into service; their word ends ours")


def _taken_over(turn: Turn, node: NodeRecord) -> None:
    turn.orders.withdraw(node.about, "a person holds the node now")
    _clear(turn, node, f"a person drained it for a reason of their own ({node.view.drain_reason}); it is theirs now")


def _clear(turn: Turn, node: NodeRecord, why: str, *, repaired: bool = True) -> None:
    """Back to healthy, without more ado; not `repaired`: what it reports late of the time before still counts."""
    node_record.unbrake(turn, node)
    if node.phase is not NodeState.HEALTHY:
        turn.move_node(node, NodeTrigger.CLEARED)
    node_record.clean(turn, node, turn.said_at if repaired else node.clean_at)
    turn.tell(node, f"{why[0].upper()}{why[1:]}.")
    incident = repair.incident_of(turn, node)
    if incident is not None:
        incident_record.node_settled(turn, incident, node, f"{why}.")


def _well_again(turn: Turn, node: NodeRecord, why: str, *, repaired: bool = True) -> None:
    """Nothing is held against it any more. It may have come back to the cluster drained by us, and suspect."""
    _clear(turn, node, why, repaired=repaired)
    _found_drained(turn, node)


def vanished(turn: Turn, event: e.NodeVanished) -> None:
    """The scheduler no longer knows the node: replaced under another name, or taken out."""
    node = turn.state.nodes.get(event.node)
    if node is None:
        return
    turn.orders.withdraw(node.about, "the node left the cluster")
    for name in (node.about, f"silent:{node.name}"):
        turn.timers.cancel(name)
    node_record.unbrake(turn, node)
    incident = repair.incident_of(turn, node)
    node_record.left(turn, node)
    if incident is not None:
        if node.phase is NodeState.REPAIRING:
            turn.stamp(incident, Mark.NODE_REPAIRED)
        incident_record.node_settled(turn, incident, node, "it left the cluster.")


def silent(turn: Turn, event: e.NodeSilent) -> None:
    """Nobody has heard of it for a while: unknown, which is not gone."""
    node = turn.state.nodes.get(event.node)
    if node is None or node.silent:
        return
    node_record.fell_silent(turn, node)
    turn.tell(node, f"Nothing was heard of it for {story.seconds(event.for_s)}; it is unknown, not gone.")
    if node.phase in {NodeState.HEALTHY, NodeState.SUSPECT} and not node.gone:
        turn.timers.start(f"silent:{node.name}", turn.policy_for(node).waits.unknown_s)


def heard(turn: Turn, name: str) -> None:
    """It is heard again, and shows the state that silence covered."""
    node = turn.state.nodes.get(name)
    if node is None or not node.silent:
        return
    node_record.heard(turn, node)
    if node.view.alive is not False:
        back(turn, node)


def spoke(turn: Turn, name: str) -> None:
    """Its agent's own word: it is heard."""
    if name in turn.state.nodes:
        node_record.agent_spoke(turn, turn.state.nodes[name])
    heard(turn, name)


def node_heard(turn: Turn, event: e.NodeHeard) -> None:
    """Its agent is heard."""
    spoke(turn, event.node)


def validated(turn: Turn, event: e.NodeValidated) -> None:
    """Its checks have an outcome."""
    node = turn.state.nodes.get(event.node)
    if node is not None and node.phase is NodeState.SUSPECT:
        _checked(turn, node, event)
    elif node is not None:
        repair.validated(turn, node, passed=event.passed, instance_id=event.instance_id, detail=event.detail)


def agent_attached(turn: Turn, event: e.AgentAttached) -> None:
    """An agent reports, perhaps after a boot or on another machine."""
    if turn.in_allocation:
        return
    node = record_of(turn, event.node)
    node_record.open_to_drills(turn, node, event.drill_ok)
    spoke(turn, event.node)
    identity(turn, node, event.boot_id, event.instance_id, by_agent=True)


def domain_lost(turn: Turn, incident: IncidentRecord) -> None:
    """What its nodes share has failed: those that wait for the brake need not be fenced."""
    for name in incident.nodes_open:
        node = turn.state.nodes[name]
        approved_by_people = any(one.is_approved for one in turn.orders.about(node.about, o.QuarantineNode))
        if approved_by_people or node.phase is not NodeState.SUSPECT:
            continue
        if incidents.waits_for_domain(turn, node, incident):
            node_record.unbrake(turn, node)
            _wait_for_domain(turn, node, incident)


def _wait_for_domain(turn: Turn, node: NodeRecord, incident: IncidentRecord) -> None:
    path = incidents.path_of(incident)
    turn.tell(node, f"Not fenced: it was lost together with others of {path}; it is well again when it is back.")
    turn.timers.start(node.timer, turn.policy_for(node).waits.unknown_s, incident.id)


def back(turn: Turn, node: NodeRecord, *, as_before: bool = False) -> None:
    """It runs again. One that was lost with its whole domain is well, and so is one that was only suspect.

    Args:
        turn: the event's turn.
        node: which one.
        as_before: it never ended: the scheduler, which had called it lost, sees it with the boot that it had.
    """
    incident = repair.incident_of(turn, node)
    path = incidents.path_of(incident)
    if not incidents.is_lost(node) or node.phase not in _WAITING:
        return
    if node.phase is NodeState.SUSPECT and (as_before or _is_observed(turn, node)) and _runs(node):
        turn.orders.withdraw(node.about, "it runs again")
        _well_again(turn, node, "it runs again", repaired=False)
        return
    if incident is None or not path or node.silent:
        return
    node_record.cleared(turn, node)
    turn.timers.cancel(node.timer)
    turn.stamp(incident, Mark.NODE_RETURNED)
    if node.phase is NodeState.SUSPECT:
        turn.orders.withdraw(node.about, f"it is back with {path}")
        _well_again(turn, node, f"it is back with {path}", repaired=False)
    elif node.phase is NodeState.DRAINING:
        repair.check_drained(turn, node)


def _runs(node: NodeRecord) -> bool:
    """Does nobody say that it is gone, or has nothing to say of it?"""
    return not node.silent and node.view.alive is not False


def timer(turn: Turn, node: NodeRecord) -> None:
    """`node:NAME` fired. A node that waits for its domain is looked at again; who stays away alone is fenced."""
    incident = repair.incident_of(turn, node)
    waits = node.phase in _WAITING and incidents.is_lost(node)
    if incident is None or not incidents.path_of(incident) or not waits:
        repair.timer(turn, node)
    elif node.view.alive is True and not node.silent:
        back(turn, node)  # scheduler and agent say so; nobody saw it go, such as behind a link that failed for a moment
    elif incidents.waits_for_domain(turn, node, incident):
        turn.timers.start(node.timer, turn.policy_for(node).waits.unknown_s, incident.id)
    elif node.phase is NodeState.SUSPECT:
        turn.tell(node, f"It has not come back with {incidents.path_of(incident)}.")
        quarantine(turn, node, incident, LOST_ALONE)
    else:
        turn.timers.start(node.timer, turn.policy_for(node).waits.drain_s, incident.id)
        repair.check_drained(turn, node)


def is_out_already(turn: Turn, node: NodeRecord, finding: Finding) -> bool:
    """Evidence against a node that was retired is written down; a person was told then, and nothing is left to do."""
    if node.phase is not NodeState.RETIRED:
        return False
    node_record.accuse(node, finding.rule)
    turn.tell(node, f"{story.of_finding(finding)}; it is out of service already.")
    return True


def suspect(
    turn: Turn, node: NodeRecord, incident: IncidentRecord, finding: Finding, *, job: JobRecord | None = None
) -> None:
    """Evidence against the node: fence it, if mode, brake and the evidence's origin allow.

    `job`: whose diagnosis names the node; None: whoever the event is from says so.
    """
    trust.note(turn, node, finding, job)
    if is_out_already(turn, node, finding):
        return
    state = node.phase
    node_record.accuse(node, finding.rule)
    incidents.attach_node(turn, incident, node)
    incident = repair.incident_of(turn, node) or incident
    turn.tell(node, f"{story.of_finding(finding)}.")
    if state is NodeState.HEALTHY:
        turn.move_node(node, NodeTrigger.SUSPECT)
    elif state is NodeState.VALIDATING:
        turn.orders.withdraw(node.about, "it failed again before it was returned")
        repair.next_rung(turn, node, "it failed again before it was returned")
        return
    elif state is NodeState.DRAINING:
        turn.stamp(incident, Mark.ISOLATED)
        repair.check_drained(turn, node)
        return
    elif state is not NodeState.SUSPECT:
        return
    quarantine(turn, node, incident, story.of_finding(finding))


def moved_by(turn: Turn, node: NodeRecord, finding: Finding, jobs: list[JobRecord]) -> list[JobRecord]:
    """Of these jobs those that must leave the node: what is not believed of it yet moves the job that says so alone."""
    return [job for job in jobs if job.key == finding.job] if repair.is_held(turn, node) else jobs


def order_to_fence(turn: Turn, node: NodeRecord, why: str, planned: Remedy, *, gone: bool = False) -> o.QuarantineNode:
    """The quarantine of a node as policy wants it carried out, for its incident."""
    rules = turn.policy_for(node).node
    return turn.order(
        o.QuarantineNode,
        node,
        remedy=Remedy.QUARANTINE,
        why=why,
        gone=gone,
        repair=planned,
        takes_prolog_drain=rules.failed_prolog_is_a_fault,
        action_reason=rules.action_reason,
    )


def quarantine(turn: Turn, node: NodeRecord, incident: IncidentRecord, why: str) -> None:
    """Keep new work off it. Somebody else's drain is respected, and serves as well."""
    if _is_asked(turn, node):
        return
    if node.view.drained and not node.drained_by_us and not is_ours(node.view):
        turn.stamp(incident, Mark.ISOLATED)
        if is_checkers(node.view):
            _wait_for_checker(turn, node, incident)
            return
        reason = node.view.drain_reason or "no reason given"
        incident_record.node_settled(
            turn, incident, node, f"drained already by somebody else ({reason}); it is left to them."
        )
        return
    if incidents.waits_for_domain(turn, node, incident):
        _wait_for_domain(turn, node, incident)
        return
    policy = turn.policy_for(node)
    group = node.view.group
    acts = turn.mode(policy, group, Remedy.QUARANTINE, incident.id) is Mode.ACT
    if acts and (because := trust.holds_node(turn, node)):
        _wait_for_evidence(turn, node, incident, why, because)
        return
    if acts and not node_record.brake_allows(policy.brake, node_record.brake_of(turn, group), node.name, turn.now):
        _held_back(turn, node, incident, group)
        return
    order = order_to_fence(turn, node, why, repair.planned(turn, node, incident), gone=node.gone)
    status = turn.ask(order, policy, group)
    if status is OrderStatus.PENDING:
        entered(turn, node, incident)
        return
    turn.unfenced.append(node.name)
    if status is OrderStatus.OBSERVED:
        turn.tell(node, "It would have been quarantined (observe); it is left to people.")
    else:
        turn.tell_all(incident, node, "waiting for a person to approve its quarantine.")


def _wait_for_checker(turn: Turn, node: NodeRecord, incident: IncidentRecord) -> None:
    """Leave it in the drain of a health checker, which no order of ours lifts; when that is lifted it is fenced."""
    reason = node.view.drain_reason
    turn.tell_all(incident, node, f"drained already by a health checker ({reason}); it is fenced when that ends.")


def _is_asked(turn: Turn, node: NodeRecord) -> bool:
    """Is its quarantine ordered or proposed? One that waited for further evidence is no more, once that has come."""
    asked = turn.orders.about(node.about, o.QuarantineNode)
    if repair.is_held(turn, node) and not trust.holds_node(turn, node):
        turn.orders.withdraw(node.about, "a second kind of evidence has come", o.QuarantineNode, o.ValidateNode)
        return False
    return bool(asked)


def _wait_for_evidence(turn: Turn, node: NodeRecord, incident: IncidentRecord, why: str, because: str) -> None:
    """Have people decide, and the node checked: what comes first counts."""
    policy, group = turn.policy_for(node), node.view.group
    order = order_to_fence(turn, node, why, repair.planned(turn, node, incident), gone=node.gone)
    turn.propose(order, policy, group, wait_s=policy.waits.validate_s, waits_for=because)
    turn.unfenced.append(node.name)
    for reporter in sorted(node_record.witnesses(node)):
        node_record.rest_held(turn, group, reporter, order.id)
    waits = "it waits for its own agent, the scheduler, a check of it, or a person"
    turn.tell_all(incident, node, f"not quarantined, since {because}; {waits}.")
    repair.look_closer(turn, node)


def is_braked(turn: Turn, record: OrderRecord) -> bool:
    """Would the brake hold this quarantine back, if it was given now?"""
    order = record.order
    node = turn.state.nodes.get(order.node) if isinstance(order, o.QuarantineNode) else None
    brake = turn.state.brakes.get(node.view.group) if node is not None else None
    return (
        node is not None
        and brake is not None
        and not node_record.brake_allows(turn.policy_for(node).brake, brake, node.name, turn.now)
    )


def wait_for_brake(turn: Turn, record: OrderRecord) -> None:
    """Keep a quarantine that people have approved until the brake lets it: it is given then."""
    turn.orders.wait_on(record, BRAKE)
    node = turn.state.nodes[getattr(record.order, "node", "")]
    if (incident := repair.incident_of(turn, node)) is not None:
        _held_back(turn, node, incident, node.view.group)


def wait_for_people(turn: Turn, record: OrderRecord) -> None:
    """An approval is gone, and its quarantine waits for the brake no longer, but for people."""
    node = turn.state.nodes.get(getattr(record.order, "node", ""))
    if node is not None:
        policy, group = turn.policy_for(node), node.view.group
        node_record.unbrake(turn, node)
        acts = turn.mode(policy, group, Remedy.QUARANTINE, record.order.incident) is Mode.ACT
        because = trust.holds_node(turn, node) if acts else ""
        turn.orders.wait_on(record, because, policy.waits.validate_s if because else policy.waits.propose_s)


def approved(turn: Turn, node: NodeRecord, incident: IncidentRecord) -> None:
    """A person approved its quarantine, and it has been ordered: it rests on their word, too."""
    trust.approved_by_person(node)
    entered(turn, node, incident)


def _checked(turn: Turn, node: NodeRecord, event: e.NodeValidated) -> None:
    """The checks of a suspect: failed ones are the evidence that it waited for, passed ones clear it."""
    open_checks = turn.orders.about(node.about, o.ValidateNode)
    incident = repair.incident_of(turn, node)
    other = other_machine(event.instance_id, node.instance_id, node.agent_instance_id)
    if not open_checks or other or incident is None:
        return
    for record in open_checks:
        turn.orders.settle(record.order.id, OrderStatus.DONE, event.detail)
    if event.passed:
        turn.orders.withdraw(node.about, "it passed its checks")
        _well_again(turn, node, "it passed its checks, which clears it")
        return
    why = f"it failed its checks{': ' + event.detail if event.detail else ''}"
    trust.checks_failed(turn, node)
    turn.tell_all(incident, node, f"{why}.")
    quarantine(turn, node, incident, why)


def entered(turn: Turn, node: NodeRecord, incident: IncidentRecord) -> None:
    """Its quarantine is ordered. A return that is still under way must not undo it."""
    turn.orders.withdraw(node.about, "it is quarantined anew", o.ReturnNode, o.ValidateNode)
    node_record.unbrake(turn, node)
    trust.count_node(turn, node)
    node_record.quarantined(turn, node, turn.policy_for(node).node.lemon_window_s)
    incident_record.tried(turn, incident, Remedy.QUARANTINE)
    turn.tell_all(incident, node, "quarantined.")


def _held_back(turn: Turn, node: NodeRecord, incident: IncidentRecord, group: str) -> None:
    policy = turn.policy_for(node)
    record = node_record.brake_of(turn, group)
    is_new, timer = node.name not in record.waiting, f"brake:{group}"
    first = node_record.brake_hold_back(record, node.name, turn.now)
    turn.changes.add(record)
    if is_new:
        turn.unfenced.append(node.name)
    if is_new or timer not in turn.state.timers:  # one that goes on complaining must not keep the others waiting
        turn.timers.start(timer, node_record.next_brake_look(policy.brake, record, turn.now))
    turn.tell_all(incident, node, "not quarantined: the brake of its group holds it back.")
    taken, window = record.quarantined, story.seconds(policy.brake.window_s)
    closes = story.seconds(node_record.next_brake_look(policy.brake, record, turn.now))
    title = f"Quarantine brake tripped for {group or 'the cluster'}"
    text = (
        f"{len(taken)} of {record.nodes} nodes were quarantined within {window}. Repairs, returns and restarts of jobs "
        f"go on. It closes by itself, in {closes} at the earliest, or by hand."
    )
    if node.name in taken:
        title = f"{node.name} is not quarantined again"
        text = (
            f"It was quarantined as often within {window} as the brake of its group allows ({taken[node.name]}). "
            "It may take new work until that time has passed: look at it, and drain it by hand."
        )
    if first:
        turn.notify(timer, Severity.ERROR, title, text, node=node.name)


def brake_timer(turn: Turn, group: str) -> None:
    """A calm spell is over: quarantine what still waits, as far as the window allows."""
    record = turn.state.brakes.get(group)
    if record is None or not record.waiting:
        return
    rules = turn.policies.for_group(group).brake
    _retry(turn, record, node_record.reopen_brake(rules, record, turn.now))
    if record.waiting:
        node_record.keep_tripped(record, turn.now)
        turn.timers.start(f"brake:{group}", node_record.next_brake_look(rules, record, turn.now))


def reset_brake(turn: Turn, group: str, who: str) -> bool:
    """By hand. False when the group is not known."""
    record = turn.state.brakes.get(group)
    if record is None:
        return False
    turn.timers.cancel(f"brake:{group}")
    turn.changes.add(record)
    freed = node_record.reset_brake_record(record)
    turn.notify(f"brake:{group}", Severity.INFO, f"Quarantine brake of {group or 'the cluster'} reset", f"By {who}.")
    _retry(turn, record, freed)
    return True


def _retry(turn: Turn, record: BrakeRecord, names: list[str]) -> None:
    turn.changes.add(record)
    for name in names:
        node = turn.state.nodes.get(name)
        incident = repair.incident_of(turn, node) if node is not None else None
        if node is None or incident is None or node.phase is not NodeState.SUSPECT:
            continue
        _fence_waiting(turn, node, incident)


def _fence_waiting(turn: Turn, node: NodeRecord, incident: IncidentRecord) -> None:
    """Its brake lets it go: give what people approved meanwhile, or judge anew."""
    waiting = [one for one in turn.orders.about(node.about, o.QuarantineNode) if one.is_approved]
    for one in waiting:
        if is_braked(turn, one):
            wait_for_brake(turn, one)
            continue
        people = story.listed([known.who for known in one.approvals])
        turn.orders.approve(one, people)
        turn.tell(node, f"the brake lets its quarantine go on, which {people} approved.")
        approved(turn, node, incident)
    if not waiting:
        quarantine(turn, node, incident, ", ".join(node.findings[:3]))


def cleared(turn: Turn, event: e.FindingCleared) -> None:
    """A condition no longer holds. Only what that rule alone caused is undone."""
    node = turn.state.nodes.get(event.node)
    if node is None or event.rule not in node.findings:
        return
    node_record.acquit(node, event.rule)
    turn.tell(node, f"{event.rule} no longer holds.")
    if node.findings:
        return
    if node.phase is NodeState.SUSPECT:
        turn.orders.withdraw(node.about, "the fault is gone")
        node_record.unbrake(turn, node)
        _well_again(turn, node, "the fault is gone")
    elif node.phase is NodeState.DRAINING:
        turn.orders.withdraw(node.about, "the fault is gone", *repair.REPAIR_ORDERS)
        repair.check_drained(turn, node)


def quarantine_failed(turn: Turn, node: NodeRecord, why: str) -> None:
    """It could not be fenced, and a person must know; a drain of ours that is seen all the same is its fence."""
    if node.drained_by_us and node.view.drained:
        repair.fenced(turn, node)
        return
    incident = repair.incident_of(turn, node)
    if node.phase is NodeState.QUARANTINED:
        turn.move_node(node, NodeTrigger.SUSPECT)
    node_record.fence_failed(turn, node)
    turn.tell_all(incident, node, f"it could not be quarantined: {why}.")
    topic = incident.id if incident is not None else node.about
    text = f"{why}. It may take new work although it is suspect."
    turn.notify(topic, Severity.ERROR, f"{node.name} could not be quarantined", text, node=node.name)
    if incident is not None:
        incident_record.node_settled(turn, incident, node, "it could not be quarantined; a person was told.")


def not_approved(turn: Turn, node: NodeRecord, why: str) -> None:
    """A proposal about the node was rejected, lapsed or overtaken: it is left to people."""
    incident = repair.incident_of(turn, node)
    node_record.unbrake(turn, node)
    if node.phase is NodeState.SUSPECT:
        turn.orders.withdraw(node.about, why, o.ValidateNode)  # its checks were to decide on what was dropped
    plans = turn.orders.about(node.about, o.QuarantineNode, o.ValidateNode, *repair.REPAIR_ORDERS)
    if incident is not None and not plans:  # a return that is still under way is no plan for it
        repair.not_done(turn, node, incident, f"nothing is done about it: {why}")


def vouched(turn: Turn, node: NodeRecord, why: str) -> None:
    """A person says that it is well: our own plans for it end."""
    turn.orders.withdraw(node.about, why)
    node_record.unbrake(turn, node)
    _clear(turn, node, why)
    if node.view.alive is False:
        # The scheduler must come to see it in the same way; if not, the node is as dead as it was.
        turn.timers.start(f"silent:{node.name}", turn.policy_for(node).waits.unknown_s)


def order_done(turn: Turn, node: NodeRecord, order: o.NodeOrder) -> None:
    """What an order's success leads to."""
    other = other_machine(order.instance_id, node.instance_id, node.agent_instance_id)
    if other and not isinstance(order, o.ReplaceNode):
        return  # the machine it was about is gone
    if isinstance(order, o.QuarantineNode):
        incident = repair.incident_of(turn, node)
        if is_checkers(node.view) and incident is not None and node.phase is NodeState.QUARANTINED:
            turn.move_node(node, NodeTrigger.SUSPECT)
            _wait_for_checker(turn, node, incident)
        elif _is_theirs(node.view):
            _taken_over(turn, node)  # while our order was under way; it has found the node drained, and left it so
        else:
            repair.fenced(turn, node)
    elif isinstance(order, repair.REPAIR_ORDERS):
        repair.repair_done(turn, node, order)
    elif isinstance(order, o.ReturnNode):
        repair.returned(turn, node)


def order_failed(turn: Turn, node: NodeRecord, order: o.NodeOrder, why: str) -> None:
    """It could not be carried out."""
    if isinstance(order, o.QuarantineNode):
        quarantine_failed(turn, node, why)
    else:
        repair.failed(turn, node, order, why)
