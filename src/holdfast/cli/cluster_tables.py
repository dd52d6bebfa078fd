"""Jobs, nodes, incidents and orders as tables and pages for a terminal: 80 columns suffice, wider ones are used.

Called by the viewing commands; pure, the time comes in as `at`. Text from outside is put into cells as text, never
as markup (`screen.PlainConsole` drops control characters). Many nodes are folded as ClusterShell writes them.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from holdfast.cli import screen
from holdfast.cli.json_forms import target
from holdfast.detect.lifting import all_lifted_by
from holdfast.model.evidence import Finding, Role
from holdfast.model.orders import CancelTimer, Notify, OrderStatus, StartTimer
from holdfast.model.records import (
    SHOWN_STATES,
    AttemptRecord,
    BrakeRecord,
    IncidentRecord,
    JobRecord,
    NodeRecord,
    NodeState,
    OrderRecord,
)
from holdfast.model.wire import kind_of
from holdfast.report.saves import Save
from holdfast.report.tables import cause, percent, seconds, suspects, utc
from holdfast.report.terminal import story_panel, timeline_table
from holdfast.report.timeline import NODE_ORDER, node_phases, timeline
from holdfast.report.training_time import AttemptTime, Restart, TrainingTime

DAY_S = 20 * 3600
"""Younger than this, a time of day is clear without a date."""
ROWS_MAX = 40
"""More nodes than this are grouped by state unless every row is asked for."""
NAME_MAX = 24
"""Characters of a job's name in a list; its own page has all of it."""
NAMES_MAX = 300
"""Characters of a folded node set in a table."""
EVIDENCE_MAX = 12
"""Findings whose evidence is shown; the JSON form has all of them."""
SAVES_MAX = 5
"""Saves that a job's page shows; the JSON form has all of them."""
TEXT_MAX = 400
"""Characters of one piece of evidence."""


def jobs_table(jobs: Sequence[JobRecord], at: float) -> Table:
    """One row per job, newest first."""
    ordered = sorted(jobs, key=lambda job: (-_latest(job), str(job.key)))
    headings = ("job", "name", "state", "for", "step", "saved", "nodes")
    return screen.table(
        *headings, rows=(_job_row(job, at) for job in ordered), right=("for", "step", "saved"), keep=("job",)
    )


def _job_row(job: JobRecord, at: float) -> Iterable[screen.Cell]:
    attempt = job.attempt
    state = screen.state(job.state)
    if job.incident:
        state.append(f" {screen.clean(job.incident)}", style="dim")
    nodes = _short(screen.fold(attempt.nodes if attempt is not None and attempt.nodes else job.view.nodes))
    step = attempt.reached if attempt is not None else None
    name = _short(screen.clean(job.view.name), NAME_MAX)
    return job.name, name, state, screen.age(job.since, at), step, job.durable_step or None, nodes


def _latest(job: JobRecord) -> float:
    return max([job.view.submitted_at, job.since, *(attempt.started_at for attempt in job.attempts)])


def job_page(
    job: JobRecord,
    incidents: Sequence[IncidentRecord],
    orders: Sequence[OrderRecord],
    saves: Sequence[Save],
    at: float,
    trained: TrainingTime,
    *,
    launcher: str = "",
) -> RenderableType:
    """One job: facts, attempts, newest saves, incidents, open orders, story. `launcher`: what has become of it."""
    view, attempt = job.view, job.attempt
    state = screen.state(job.state)
    leads = f"{view.state} in the scheduler; the {job.authority} decides"
    state.append(f" for {screen.age(job.since, at)}; {'its launcher is gone' if launcher else leads}", style="dim")
    progress = f"best step {job.best_step}, last durable checkpoint {job.durable_step or '-'}"
    rows: list[tuple[str, str | Text]] = [
        ("state", state),
        ("launcher", launcher),
        ("owner", ", ".join(part for part in (view.user, view.partition and f"partition {view.partition}") if part)),
        ("nodes", screen.fold(attempt.nodes if attempt is not None and attempt.nodes else view.nodes)),
        ("kept off", screen.fold(job.excluded)),
        ("progress", progress if job.attempts else "no attempt has started"),
        ("restarts", f"{job.in_place} in place, {job.requeues} requeued since the last progress"),
        ("time", _trained(trained)),
        ("held by", job.held_by),
        ("logs", attempt.log_dir if attempt is not None else ""),
    ]
    waiting = [order for order in orders if order.status in {OrderStatus.PENDING, OrderStatus.PROPOSED}]
    return Group(
        _heading(f"Job {job.key}", view.name),
        screen.facts(rows),
        *_if(job.attempts, lambda: attempts_table(job, at, trained)),
        *_if(saves, lambda: saves_table(job, saves[:SAVES_MAX], at)),
        *_if(incidents, lambda: incidents_table(incidents, at, title="Incidents")),
        *_if(waiting, lambda: orders_table(waiting, at, title="Orders that wait")),
        *_story(job.story),
    )


def _if(found: Sequence[object], made: Callable[[], RenderableType]) -> list[RenderableType]:
    """Made of what was found, below an empty line; nothing where nothing was found."""
    return [Text(), made()] if found else []


def _trained(found: TrainingTime) -> str:
    """Training-time efficiency, with what it is made of."""
    if found.efficiency is None:
        return ""
    failed = f"; {found.restarts_failed} of {found.restarts} restarts failed" if found.restarts else ""
    times = f"{seconds(found.trained_s)} trained, {seconds(found.downtime_s)} down"
    return f"training-time efficiency {percent(found.efficiency)}: {times}{failed}"


def attempts_table(job: JobRecord, at: float, trained: TrainingTime) -> Table:
    """One row per execution, with the downtime before it; the nodes stand there only when they changed."""
    moved = len({attempt.nodes for attempt in job.attempts}) > 1
    times = {one.attempt: one for one in trained.attempts}

    def row(attempt: AttemptRecord) -> Iterable[screen.Cell]:
        time = times.get(attempt.number)
        yield f"{job.key}({attempt.number})"
        yield _started(attempt.started_at, at)
        end = attempt.ended_at or at
        yield screen.span(max(0.0, end - attempt.started_at)) if attempt.started_at else None
        yield screen.span(time.downtime_s) if time is not None and time.downtime_s else None
        reached = "-" if attempt.reached is None else attempt.reached
        yield None if attempt.first_step is None else f"{attempt.first_step}-{reached}"
        yield attempt.resumed_from
        yield attempt.durable_step
        yield _end(attempt, time)
        if moved:
            yield _short(screen.fold(attempt.nodes))

    return screen.table(
        "attempt", "started", "lasted", "down", "steps", "loaded", "saved", "end", *(["nodes"] if moved else []),
        rows=map(row, job.attempts), title="Attempts", right=("lasted", "down", "loaded", "saved"),
        keep=("attempt", "lasted", "down", "started"),
    )  # fmt: skip


def _end(attempt: AttemptRecord, time: AttemptTime | None) -> Text:
    """How it ended, and whether that was a failed restart."""
    words = ended(attempt)
    if time is not None and time.restart is Restart.FAILED:
        words.append(", failed restart", style="red")
    return words


def saves_table(job: JobRecord, saves: Sequence[Save], at: float) -> Table:
    """One row per save, newest first: when it was staged, when it was durable, and the seconds between."""
    rows = (
        (
            save.step,
            f"{job.key}({save.attempt})",
            _started(save.staged_at, at) if save.staged_at else None,
            _started(save.durable_at, at) if save.durable_at else "not yet",
            None if save.took_s is None else f"{save.took_s:.1f} s",
        )
        for save in saves
    )
    headings = ("step", "attempt", "staged", "durable", "took")
    return screen.table(*headings, rows=rows, title="Checkpoints", right=("step", "took"))


def _started(started: float, at: float) -> str:
    """The time of day; with the date when that is not clear."""
    return utc(started)[11:19] if at - started < DAY_S else utc(started)[5:16]


def ended(attempt: AttemptRecord) -> Text:
    """How an attempt ended: `running`, `exit 0`, `signal 11 (SIGSEGV), stopped by Holdfast`."""
    if not attempt.ended_at:
        return Text("running", style="green")
    if attempt.signal:
        words, style = f"signal {signal_name(attempt.signal)}", "red"
    elif attempt.exit_code is not None:
        words, style = f"exit {attempt.exit_code}", "green" if attempt.exit_code == 0 else "red"
    else:
        words, style = "ended", "yellow"
    if attempt.stopped:
        words, style = f"stopped ({words})" if words != "ended" else "stopped", "yellow"
    if attempt.incident:
        words += f", {screen.clean(attempt.incident)}"
    return Text(words, style=style)


def signal_name(number: int) -> str:
    """`11 (SIGSEGV)`."""
    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return str(number)


def nodes_view(
    nodes: Sequence[NodeRecord], brakes: Iterable[BrakeRecord], at: float, *, every: bool = False
) -> RenderableType:
    """A row per node; with many of them one row per group and state, and a row for each that is not healthy."""
    parts: list[RenderableType] = []
    if every or len(nodes) <= ROWS_MAX:
        parts.append(node_rows(nodes, at))
    else:
        parts.append(node_groups(nodes))
        ill = [node for node in nodes if node.state is not NodeState.HEALTHY]
        if ill:
            newest = sorted(ill, key=lambda node: -node.since)[:ROWS_MAX]
            parts += [Text(), node_rows(newest, at, title="Not healthy, newest first")]
            if len(ill) > len(newest):
                parts.append(Text(f"{len(ill) - len(newest)} more are not healthy; --all shows every node."))
    for brake in brakes:
        if brake.tripped_at:
            held = f", which holds back {screen.fold(brake.waiting)}" if brake.waiting else ""
            words = (
                f"Brake of {screen.clean(brake.group) or 'the cluster'} tripped {screen.age(brake.tripped_at, at)} ago"
            )
            parts += [Text(), Text(words + held + ".", style="bold red")]
    return Group(*parts)


def brakes_view(brakes: Sequence[BrakeRecord], at: float) -> list[RenderableType]:
    """A row for each group, and one for each reporter on whose word alone something rests there."""

    def row(brake: BrakeRecord) -> Iterable[screen.Cell]:
        state = f"tripped {screen.age(brake.tripped_at, at)} ago" if brake.tripped_at else "not tripped"
        return (
            screen.clean(brake.group) or "all",
            state,
            brake.nodes,
            len(brake.quarantined),
            screen.fold(brake.waiting),
        )

    parts: list[RenderableType] = [
        screen.table("group", "brake", "nodes", "quarantined lately", "waiting", rows=map(row, brakes))
    ]
    rested = [
        (brake.group, name, one)
        for brake in brakes
        for name, one in sorted(brake.reporters.items())
        if one.nodes or one.requeues or one.held
    ]
    if rested:
        rows = (
            (screen.clean(group) or "all", screen.clean(name), screen.fold(sorted(one.nodes)), len(one.requeues),
             screen.clean(", ".join(one.held)))
            for group, name, one in rested
        )  # fmt: skip
        title = "On one reporter's word alone"
        heads = ("group", "reporter", "nodes quarantined", "jobs requeued", "orders that wait for a person")
        parts += [Text(), screen.table(*heads, rows=rows, title=title)]
    return parts


def node_groups(nodes: Sequence[NodeRecord]) -> Table:
    """Nodes folded by group and state."""
    counted: dict[tuple[str, str], list[str]] = {}
    for node in sorted(nodes, key=lambda n: (n.view.group, SHOWN_STATES.index(n.shown))):
        counted.setdefault((node.view.group, node.shown), []).append(node.name)
    rows = (
        (screen.clean(group) or None, screen.state(state), len(names), _short(screen.fold(names)))
        for (group, state), names in counted.items()
    )
    return screen.table("group", "state", "count", "nodes", rows=rows, right=("count",), keep=("state", "count"))


def node_rows(nodes: Iterable[NodeRecord], at: float, *, title: str = "") -> Table:
    """One row per node."""
    rows = (
        (
            node.name,
            screen.clean(node.view.group) or None,
            screen.state(node.shown),
            screen.age(node.since, at),
            _short(",".join(screen.clean(job) for job in node.view.jobs), 40) or None,
            node_reason(node),
        )
        for node in nodes
    )
    headings = ("node", "group", "state", "for", "jobs", "why")
    return screen.table(*headings, rows=rows, right=("for",), keep=("for",), title=title)


def node_reason(node: NodeRecord) -> str:
    """Why a node is as it is, in one line; also `spare`."""
    parts = ["spare"] if node.view.spare else []
    if node.gone:
        parts.append("gone")
    elif node.silent:
        parts.append("silent")
    parts += [screen.clean(rule) for rule in node.findings]
    if node.view.drained:
        parts.append(f"drained: {screen.clean(node.view.drain_reason)}" if node.view.drain_reason else "drained")
    if node.incident:
        parts.append(screen.clean(node.incident))
    return ", ".join(parts)


def node_page(
    node: NodeRecord, incidents: Sequence[IncidentRecord], orders: Sequence[OrderRecord], at: float
) -> RenderableType:
    """One node: facts, incidents, orders, story."""
    view = node.view
    state = screen.state(node.shown)
    state.append(f" for {screen.age(node.since, at)}", style="dim")
    drained = ""
    if view.drained:
        drained = f"by {'Holdfast' if node.drained_by_us else 'someone else'}: {view.drain_reason or 'no reason given'}"
    answers = {True: "yes", False: "no: it does not run", None: "not known"}[view.alive]
    rows: list[tuple[str, str | Text]] = [
        ("state", state),
        ("answers", answers + (", silent" if node.silent else "")),
        ("agent", "" if node.heard else "never heard"),
        ("group", view.group + (", spare" if view.spare else "")),
        ("drained", drained),
        ("scheduler", view.state_text),
        ("jobs", ", ".join(view.jobs)),
        ("findings", ", ".join(node.findings)),
        ("lifted by", all_lifted_by(node.findings)),
        ("machine", node.instance_id or view.instance_id),
        ("boot", node.boot_id or view.boot_id),
        ("topology", view.topology),
        ("offences", f"{len(node.offences)} in 28 days" if node.offences else ""),
    ]
    return Group(
        _heading(f"Node {node.name}"),
        screen.facts(rows),
        *_if(incidents, lambda: incidents_table(incidents, at, title="Incidents")),
        *_if(orders, lambda: orders_table(orders, at, title="Orders")),
        *_story(node.story),
    )


def incidents_table(incidents: Sequence[IncidentRecord], at: float, *, title: str = "") -> Table:
    """One row per incident, in the order given."""
    rows = (
        (
            incident.id,
            f"{screen.age(incident.opened_at, at)} ago",
            screen.outcome(incident),
            screen.clean(_short(",".join(str(key) for key in incident.jobs), 40)) or None,
            _short(cause(incident), 120),
            _short(suspects(incident), 80),
            seconds(timeline(incident).total_s or None),
        )
        for incident in incidents
    )
    headings = ("incident", "opened", "outcome", "job", "cause", "suspects", "took")
    return screen.table(*headings, rows=rows, title=title, right=("took",), keep=("incident",))


def incident_page(incident: IncidentRecord, orders: Sequence[OrderRecord], at: float) -> RenderableType:
    """One incident: facts, timeline, diagnosis, evidence, orders and their outcomes, story."""
    found = incident.diagnosis
    word = screen.outcome(incident)
    word.append(
        f", opened {utc(incident.opened_at)}" + (f", closed {utc(incident.closed_at)}" if incident.closed_at else ""),
        style="dim",
    )
    rows: list[tuple[str, str | Text]] = [
        ("outcome", word),
        ("drill", incident.drill),
        ("jobs", ", ".join(str(key) for key in incident.jobs)),
        ("nodes", screen.fold(incident.nodes)),
        ("remedies", " then ".join(remedy.value for remedy in incident.remedies)),
        ("lost", "" if incident.lost_steps is None else _lost(incident)),
        ("cause", f"{found.cause} ({found.domain}, {found.confidence:.0%} sure)" if found else "not diagnosed yet"),
    ]
    if found is not None:
        rows += [("", ""), ("suspects", suspects(incident)), ("diagnosis", found.story or found.summary)]
    node_side = _node_side(incident)
    deeds = [record for record in reversed(orders) if not _is_told(record)]
    told = [story_panel(1, incident)] if not incident.story and found is None else _story(incident.story)
    return Group(
        _heading(f"Incident {incident.id}", found.summary if found else ""),
        screen.facts(rows),
        Text(),
        timeline_table([incident]),
        *([Text(node_side)] if node_side else []),
        *([Text(), Text("Evidence", style="bold"), *_evidence(incident)] if incident.findings else []),
        *_if(deeds, lambda: orders_table(deeds, at, title="Orders, oldest first")),
        *told,
    )


def _lost(incident: IncidentRecord) -> str:
    lost = incident.lost_steps
    steps = "1 step" if lost == 1 else f"{lost} steps"
    return f"{steps} (had reached {incident.step_before}, resumed from {incident.step_resumed})"


def _node_side(incident: IncidentRecord) -> str:
    """What became of the node: its phases once it is repaired, before that seconds after the fault."""
    phases = node_phases(incident)
    if phases:
        whole = sum(phase.seconds for phase in phases)
        return f"Node: {', '.join(f'{p.name} {p.seconds:.3f} s' for p in phases)}; {whole:.3f} s in all"
    known = timeline(incident).offsets
    parts = [f"{mark.value.replace('_', ' ')} +{known[mark]:.3f} s" for mark in NODE_ORDER if mark in known]
    return f"Node: {', '.join(parts)}" if len(parts) > 1 else ""


def _evidence(incident: IncidentRecord) -> list[RenderableType]:
    """Findings by role, the root first, each with what was seen."""
    judged = {entry.finding: entry for entry in incident.diagnosis.judged} if incident.diagnosis else {}

    def role(finding: Finding) -> Role:
        return judged[finding.id].role if finding.id in judged else finding.role

    order = list(Role)
    shown = sorted(incident.findings, key=lambda finding: (order.index(role(finding)), finding.at))
    parts: list[RenderableType] = []
    for finding in shown[:EVIDENCE_MAX]:
        head = Text(f"{role(finding).value:<8} ", style="bold" if role(finding) is Role.ROOT else "dim")
        times = f" x{finding.count}" if finding.count > 1 else ""
        head.append(f"{utc(finding.at)[11:23]} {screen.clean(finding.rule)}{times}, {screen.clean(str(finding.place))}")
        why = judged[finding.id].why if finding.id in judged else ""
        if why:
            head.append(f": {screen.clean(why)}")
        parts.append(head)
        for piece in finding.evidence:
            where = f" ({screen.clean(piece.file)}{f':{piece.line}' if piece.line else ''})" if piece.file else ""
            text = Text(_short(piece.text.strip(), TEXT_MAX) + where, style="dim", overflow="fold")
            parts.append(Padding(text, (0, 0, 0, 9)))
    left = len(shown) - EVIDENCE_MAX + incident.findings_dropped
    if left > 0:
        parts.append(Text(f"{left} more findings; --json has those that were kept."))
    return parts


def orders_table(orders: Sequence[OrderRecord], at: float, *, title: str = "") -> Table:
    """One row per order, in the order given."""

    def row(record: OrderRecord) -> Iterable[screen.Cell]:
        order, status = record.order, screen.state(record.status)
        if record.status is OrderStatus.PROPOSED:
            if record.expires_at:
                left = record.expires_at - at
                status.append(f", lapses in {screen.span(left)}" if left > 0 else ", lapsed", style="dim")
            if record.approvals_needed > 1:
                names = screen.clean(", ".join(known.by.partition(" ")[0] or known.who for known in record.approvals))
                done = f", {len(record.approvals)} of {record.approvals_needed} approvals"
                status.append(f"{done} ({names})" if names else done)
        took = seconds(record.ended_at - record.issued_at) if record.ended_at else None
        words = _short(
            " -> ".join(screen.clean(part) for part in (order.why, record.waits_for, record.detail) if part), 160
        )
        issued = f"{screen.age(record.issued_at, at)} ago"
        return order.id, kind_of(order).replace("_", " "), target(order), status, issued, took, words

    headings = ("order", "what", "for", "status", "issued", "took", "why / outcome")
    return screen.table(*headings, rows=map(row, orders), title=title, right=("took",), keep=("order",))


def _is_told(record: OrderRecord) -> bool:
    """A message that has arrived: no deed."""
    return isinstance(record.order, Notify) and record.status is OrderStatus.DONE


def for_people(orders: Iterable[OrderRecord]) -> list[OrderRecord]:
    """Without the engine's own timers."""
    return [record for record in orders if not isinstance(record.order, StartTimer | CancelTimer)]


def _heading(title: str, name: str = "") -> Text:
    made = Text(screen.clean(title), style="bold")
    if name:
        made.append(f"  {screen.clean(name)}", style="default")
    return made


def _story(story: Sequence[str]) -> list[RenderableType]:
    if not story:
        return []
    lines: list[RenderableType] = [Text(), Text("Story", style="bold")]
    lines += [Padding(Text(screen.clean(line), overflow="fold"), (0, 0, 0, 2)) for line in story]
    return lines


def _short(text: str, most: int = NAMES_MAX) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
