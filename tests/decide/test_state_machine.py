"""Random events, legal and illegal, at the engine: what must always hold holds, and a replay gives the same bytes."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.decide.play import QUIET

from holdfast.decide import invariants
from holdfast.decide.engine import Engine
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.cluster import JobKey, JobView, NodeView, RecoverySpec, SchedulerState
from holdfast.model.evidence import Domain, Evidence, EvidenceKind, Finding, Place, Remedy, Role
from holdfast.model.policy import Brake, Limits, Mode, NodeRules, Policy, PolicySet, Proof, Trust

KEYS = [JobKey("c", "1"), JobKey("c", "2"), JobKey("c", "2", 2)]
NODES = ["n1", "n2", "n3", "n4", "n5", "n6"]
RULES = [
    ("exit.signal.11", Domain.APPLICATION, Remedy.RESTART_IN_PLACE, EvidenceKind.EXIT),
    ("exit.code.1", Domain.UNKNOWN, Remedy.NONE, EvidenceKind.EXIT),
    ("python.exception", Domain.APPLICATION, Remedy.NONE, EvidenceKind.LOG),
    ("nvidia.xid.74", Domain.HARDWARE, Remedy.REPLACE, EvidenceKind.LOG),
    ("nvidia.xid.73", Domain.HARDWARE, Remedy.REBOOT, EvidenceKind.LOG),
    ("check.disk", Domain.HARDWARE, Remedy.QUARANTINE, EvidenceKind.CHECK),
    ("cuda.ecc", Domain.HARDWARE, Remedy.REPLACE, EvidenceKind.LOG),
    ("hang.step", Domain.UNKNOWN, Remedy.RESTART_IN_PLACE, EvidenceKind.TELEMETRY),
    ("straggler.rank", Domain.HARDWARE, Remedy.NOTIFY, EvidenceKind.TELEMETRY),
    ("loss.nan", Domain.APPLICATION, Remedy.REQUEUE, EvidenceKind.TELEMETRY),
    ("nccl.timeout", Domain.NETWORK, Remedy.NONE, EvidenceKind.LOG),
    ("fs.io", Domain.STORAGE, Remedy.NONE, EvidenceKind.EXIT),
]


def _trust(policy: Policy) -> Trust:
    """Off in about half of the storms."""
    number = policy.limits.max_in_place
    return Trust(
        two_witnesses=policy.brake.max_nodes % 2 == 0,
        reporter_nodes=number % 3,
        reporter_requeues=number // 2,
        approvals=1 + (number == 3),
    )


class Chaos:
    """Draws events from one seeded generator; half of them fit the state, half are whatever comes."""

    def __init__(self, seed: int | random.Random, scope: str) -> None:
        self.draw = seed if isinstance(seed, random.Random) else random.Random(seed)
        r = self.draw
        policy = Policy(
            mode=r.choice([Mode.ACT, Mode.ACT, Mode.ADVISE, Mode.OBSERVE]),
            proof=r.choice(list(Proof)),
            requeue_held=r.random() < 0.7,
            enabled_by_default=r.random() < 0.5,
            always_replace=r.random() < 0.2,
            limits=Limits(max_in_place=r.randrange(4), max_requeues=r.randrange(4)),
            brake=Brake(max_nodes=r.randrange(1, 5), max_percent=r.choice([10.0, 50.0, 100.0])),
            node=NodeRules(
                validate=r.random() < 0.8, lemon_offences=r.randrange(1, 4), repair_when_drained=r.random() < 0.7
            ),
        )
        # Not drawn: a seed's storm stays what it is.
        policy = replace(policy, hold_first=policy.limits.max_requeues % 2 == 1, trust=_trust(policy))
        self.policies = PolicySet(site=policy)
        self.engine = Engine(self.policies, scope=scope)
        self.scope = scope
        self.now = 1000.0
        self.count = 0
        self.events: list[e.AnyEvent] = []
        self.issued: list[o.AnyOrder] = []
        self.keys = KEYS if scope == "cluster" else KEYS[:1]

    def some_nodes(self) -> tuple[str, ...]:
        return tuple(sorted(self.draw.sample(NODES, self.draw.randrange(0, 5))))

    def attempt(self, key: JobKey) -> int:
        job = self.engine.state.jobs.get(f"{key.cluster}/{key.id}#{key.generation}")
        number = job.attempt.number if job is not None and job.attempt is not None else 0
        return max(0, number + self.draw.choice([0, 0, 0, 0, 1, 1, -1, 2]))

    def restarts(self, key: JobKey) -> int:
        job = self.engine.state.jobs.get(f"{key.cluster}/{key.id}#{key.generation}")
        return max(0, (job.view.restart_count if job is not None else 0) + self.draw.choice([0, 0, 0, 0, 0, 1, -1]))

    def next(self) -> e.AnyEvent:
        r = self.draw
        self.now += r.choice([0.0, 0.01, 0.2, 5.0, 100.0, 2000.0])
        self.count += 1
        base = {
            "id": f"e{self.count}",
            "at": self.now - r.choice([0.0, 0.0, 0.5, 30.0, -3.0]),
            "received_at": self.now,
            "seq": self.count,
            "source": r.choice(["launcher:1", "agent:n1", "slurm", ""]),
        }
        kind = r.choice(_KINDS)
        return kind(self, base)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            event = self.next()
            self.events.append(event)
            orders = self.engine.handle(event)
            self.check(orders)
            self.issued.extend(orders)

    def check(self, orders: list[o.AnyOrder]) -> None:
        invariants.check(self.engine.state, self.engine.index)
        for order in orders:
            if self.scope == "cluster":
                assert not isinstance(order, o.StopAttempt | o.RestartInPlace | o.Escalate)
            else:
                assert not isinstance(order, o.NodeOrder | o.RequeueHeld | o.SetExcluded | o.ReleaseJob | o.GiveUp)


def _job_observed(c: Chaos, base):
    r = c.draw
    key = r.choice(c.keys)
    view = JobView(
        key=key,
        partition=r.choice(["gpu", ""]),
        state=r.choice([S.RUNNING] * 4 + [S.HELD, S.HELD, S.PENDING, S.PENDING, *list(S)]),
        restart_count=c.restarts(key),
        nodes=c.some_nodes(),
        excluded=c.some_nodes() if r.random() < 0.2 else (),
        exit_code=r.choice([None, 0, 1, 85, 86]),
        reason=r.choice(["", "Resources", "JobHeldUser"]),
        recovery=r.choice([None, RecoverySpec(), RecoverySpec(max_requeues=2), RecoverySpec(enabled=False)]),
    )
    return e.JobObserved(**base, job=replace(view, lacks_nodes=view.reason == "Resources"))


def _node_observed(c: Chaos, base):
    r = c.draw
    name = r.choice(NODES)
    known = c.engine.state.nodes.get(name)
    view = NodeView(
        name=name,
        group=r.choice(["gpu", "gpu", "gpu", "cpu"]),
        alive=r.choice([True, True, True, None, False]),
        drained=r.random() < 0.3,
        drain_reason=r.choice(["", "[holdfast] Xid", "by admin"]),
        boot_id=r.choice(["b1", "b1", "b2", known.boot_id if known else ""]),
        instance_id=r.choice(["m1", "m1", "m1", "m2", known.instance_id if known else ""]),
        jobs=tuple(r.sample(["1", "2", "99"], r.randrange(0, 2))),
        topology=r.choice(["r1/s1", "r1/s2", ""]),
    )
    return e.NodeObserved(**base, node=view)


def _finding(c: Chaos, base):
    r = c.draw
    rule, domain, remedy, kind = r.choice(RULES)
    key = r.choice([*c.keys, None])
    finding = Finding(
        id=r.choice([f"f{c.count}", f"f{c.count}", f"f{max(1, c.count - 3)}"]),
        rule=rule,
        at=base["at"],
        domain=domain,
        role=r.choice([Role.ROOT, Role.ROOT, Role.ROOT, Role.CASCADE, Role.CONTEXT, Role.BENIGN]),
        remedy=remedy,
        place=Place(node=r.choice([*NODES, ""]), rank=r.choice([None, 0, 3]), gpu=r.choice([None, 1])),
        job=key,
        attempt=c.attempt(key) if key is not None and r.random() < 0.8 else None,
        summary=rule,
        fingerprint=rule,
        evidence=r.choice([(), (Evidence(kind, "x"),)]),
        predicts=r.random() < 0.1,
    )
    return e.FindingSeen(**base, finding=finding)


def _order_outcome(c: Chaos, base):
    r = c.draw
    pending = [record.order.id for record in c.engine.pending_orders() if not isinstance(record.order, QUIET)]
    old = [order.id for order in c.issued[-20:]]
    name = r.choice(pending) if pending and r.random() < 0.9 else r.choice(old or ["c0.0"])
    if r.random() < 0.8:
        return e.OrderDone(**base, order=name)
    return e.OrderFailed(**base, order=name, why="no", permanent=r.random() < 0.7)


def _timer(c: Chaos, base):
    names = list(c.engine.state.timers)
    if not names or c.draw.random() < 0.1:
        return e.TimerFired(**base, timer=c.draw.choice(["job:c/1#1", "node:n1", "silent:n9", "x", "brake:gpu"]))
    name = c.draw.choice(names)
    if c.draw.random() < 0.8:
        c.now = max(c.now, c.engine.state.timers[name].due_at)
        base["received_at"] = base["at"] = c.now
    return e.TimerFired(**base, timer=name)


def _command(c: Chaos, base):
    r = c.draw
    proposed = [record.order.id for record in c.engine.proposed_orders()]
    if proposed and r.random() < 0.6:
        command = r.choice([e.Command.APPROVE, e.Command.APPROVE, e.Command.REJECT])
        by = f"person-{c.count % 3}"
        return e.OperatorCommand(**base, command=command, who="mei", by=by, order=r.choice(proposed))
    target = r.choice([{"node": r.choice(NODES)}, {"job": r.choice(c.keys)}, {"group": "gpu"}, {"order": "x"}, {}])
    return e.OperatorCommand(
        **base,
        command=r.choice(list(e.Command)),
        who="mei",
        value=r.choice(["act", "observe", "advise", "maybe"]),
        remedy=r.choice(["", "requeue", "reboot", "nonsense"]),
        **target,
    )


def _about_job(make):
    def build(c: Chaos, base):
        return make(c, base, c.draw.choice(c.keys))

    return build


S = SchedulerState
_KINDS = [
    *[_job_observed] * 4,
    *[_node_observed] * 3,
    *[_finding] * 6,
    *[_order_outcome] * 8,
    *[_timer] * 3,
    _command,
    _about_job(lambda c, b, k: e.LauncherAttached(**b, job=k, restart_count=c.restarts(k), nodes=c.some_nodes(), ranks=8)),
    _about_job(lambda c, b, k: e.LauncherAttached(**b, job=k, restart_count=c.restarts(k), nodes=c.some_nodes(), ranks=8)),
    _about_job(lambda c, b, k: e.LauncherLapsed(**b, job=k, left=c.draw.random() < 0.5, exit_code=c.draw.choice([None, 0, 1, 85, 86]))),
    _about_job(lambda c, b, k: e.AttemptStarted(**b, job=k, attempt=c.attempt(k), epoch=c.draw.randrange(6), restart_count=c.restarts(k), in_place=c.draw.randrange(2), nodes=c.some_nodes(), ranks=8)),
    _about_job(lambda c, b, k: e.AttemptStarted(**b, job=k, attempt=c.attempt(k), epoch=c.draw.randrange(6), restart_count=c.restarts(k), in_place=c.draw.randrange(2), nodes=c.some_nodes(), ranks=8)),
    _about_job(lambda c, b, k: e.AttemptEnded(**b, job=k, attempt=c.attempt(k), exit_code=c.draw.choice([None, 0, 1, 85, 86]), signal=c.draw.choice([None, 9]), stopped=c.draw.random() < 0.5, last_step=c.draw.choice([None, 50]))),
    _about_job(lambda c, b, k: e.AttemptEnded(**b, job=k, attempt=c.attempt(k), exit_code=c.draw.choice([None, 0, 1, 85, 86]), signal=c.draw.choice([None, 9]), stopped=c.draw.random() < 0.5, last_step=c.draw.choice([None, 50]))),
    _about_job(lambda c, b, k: e.FirstStepDone(**b, job=k, attempt=c.attempt(k), step=c.draw.randrange(200), resumed_from=c.draw.randrange(200))),
    _about_job(lambda c, b, k: e.CheckpointSaved(**b, job=k, attempt=c.attempt(k), step=c.draw.randrange(300), durable=c.draw.random() < 0.8)),
    _about_job(lambda c, b, k: e.StepReached(**b, job=k, attempt=c.attempt(k), step=c.draw.randrange(300))),
    _about_job(lambda c, b, k: e.StacksCaptured(**b, job=k, attempt=c.attempt(k), odd_ranks=c.draw.choice([(), (3,)]), silent_ranks=c.draw.choice([(), (1,)]))),
    _about_job(lambda c, b, k: e.Escalated(**b, job=k, attempt=c.attempt(k), exclude_nodes=c.some_nodes(), why="no rung")),
    lambda c, b: e.JobVanished(**b, job=c.draw.choice(c.keys)) if c.draw.random() < 0.2 else e.NodeHeard(**b, node=c.draw.choice(NODES)),
    lambda c, b: e.NodeVanished(**b, node=c.draw.choice(NODES)) if c.draw.random() < 0.3 else e.NodeHeard(**b, node=c.draw.choice(NODES)),
    lambda c, b: e.NodeSilent(**b, node=c.draw.choice(NODES), for_s=30.0),
    lambda c, b: e.NodeGone(**b, node=c.draw.choice(NODES), evidence="reset"),
    lambda c, b: e.NodeValidated(**b, node=c.draw.choice(NODES), passed=c.draw.random() < 0.7, instance_id=c.draw.choice(["", "m1", "m2"])),
    lambda c, b: e.AgentAttached(**b, node=c.draw.choice(NODES), boot_id=c.draw.choice(["b1", "b2"]), instance_id=c.draw.choice(["", "m1", "m2"])),
    lambda c, b: e.FindingCleared(**b, rule=c.draw.choice(RULES)[0], node=c.draw.choice(NODES)),
    lambda c, b: e.WatchBlind(**b, blind=c.draw.random() < 0.3, why="x"),
    lambda c, b: e.DrillFired(**b, drill="d", kind="x", job=c.draw.choice([None, c.keys[0]]), node="n1"),
    lambda c, b: e.ControllerStarted(**b, epoch=c.draw.randrange(5)),
]  # fmt: skip


@pytest.mark.parametrize("scope", ["cluster", "allocation"])
@pytest.mark.parametrize("seed", range(60))
def test_random_events_break_nothing(seed, scope):
    """150 events of every kind in any order: no error, every invariant holds after each, both scopes keep to their orders."""
    Chaos(seed, scope).run(150)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(draw=st.randoms(use_true_random=False), scope=st.sampled_from(["cluster", "allocation"]))
def test_random_events_shrink_to_the_shortest_story(draw, scope):
    """As above, driven by hypothesis: what it finds it makes as small as it can."""
    Chaos(draw, scope).run(60)


@pytest.mark.parametrize("scope", ["cluster", "allocation"])
@pytest.mark.parametrize("seed", range(8))
def test_a_replay_gives_the_same_bytes(seed, scope):
    """The same events give the same orders and snapshot; a restart from a snapshot midway changes neither."""
    chaos = Chaos(1000 + seed, scope)
    chaos.run(200)
    again = Engine(chaos.policies, scope=scope)
    orders: list[o.AnyOrder] = []
    for number, event in enumerate(chaos.events):
        if number % 37 == 36:
            again = Engine.restore(again.snapshot(), chaos.policies)
        orders += again.handle(event)
    assert orders == chaos.issued
    assert again.snapshot() == chaos.engine.snapshot()


def test_a_second_fault_asks_for_a_jobs_end_once():
    """Found by seed 2364: a job that was started while its end waited for approval broke again, and was asked about twice."""
    Chaos(2364, "cluster").run(1500)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2000, 2400))
def test_random_events_break_nothing_for_long(seed):
    """As above, longer and with more seeds."""
    for scope in ("cluster", "allocation"):
        Chaos(seed, scope).run(1500)
