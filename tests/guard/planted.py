"""Bugs that a maintainer could make, chosen by hand: `python -m tests.guard.mutants --planted` plants each of them.

Each is caught by the tests of its room, or within 300 seeds of the fuzz. Those that work in the engine of a running
process stand in tests/sim/mutants.py. A change of the code may move a text: `tests/guard/test_guard.py` tells of it.
"""

from __future__ import annotations

PLANTED: dict[str, tuple[str, str, str]] = {
    # --- named by issue and trial ---
    "partial exclusion": (
        "decide/records/job.py",
        "new = [name for name in names if name not in job.excluded]",
        "new = [name for name in names if name not in job.excluded][:1]",
    ),
    "findings dropped while held": (
        "decide/findings.py",
        "    job = _job_of(turn, finding)\n    if _is_straggler(finding)",
        "    job = _job_of(turn, finding)\n    if job and job.state == 'held':\n        return\n    if _is_straggler(finding)",
    ),
    "failed validation returns the node": ("decide/nodes.py", "passed=event.passed", "passed=True"),
    "a person's hold ignored": ("decide/operators.py", "Claim.HELD, event.who", "Claim.HOLD_ENDED"),
    "a hold in the queue ignored": (
        "decide/jobs.py",
        'turn.claim(job, Claim.HELD, "a person")\n    turn.orders.withdraw',
        "return\n    turn.orders.withdraw",
    ),
    # --- decide: repair ---
    "the repair that the catalogue names is skipped": (
        "decide/ladder.py",
        "ladder = ladder[ladder.index(hint) :]",
        "ladder = ladder[ladder.index(hint) + 1 :]",
    ),
    "a GPU is reset on a node that does not run": ("decide/ladder.py", "if lost or not gpu:", "if not gpu:"),
    "a node that fails too often is repaired once more": (
        "decide/repair.py",
        "return offences(turn, node) >= rules.lemon_offences > 0",
        "return offences(turn, node) > rules.lemon_offences > 0",
    ),
    "a node that failed twice takes work at once": (
        "decide/repair.py",
        "if times >= 2 else 0.0",
        "if times > 2 else 0.0",
    ),
    "a reboot is believed before it shows": (
        "decide/repair.py",
        "isinstance(order, o.RebootNode) and order.boot_id and node.boot_id == order.boot_id",
        "False",
    ),
    "the checks of the machine before count": (
        "decide/repair.py",
        "    if other_machine(instance_id, node.instance_id, node.agent_instance_id):\n        return\n    for record",
        "    for record",
    ),
    "a node is repaired under a running job": (
        "decide/repair.py",
        "or (policy.node.repair_when_drained and occupied(turn, node)):",
        "or (not policy.node.repair_when_drained and occupied(turn, node)):",
    ),
    "what is older than the repair counts": (
        "decide/findings.py",
        "finding.at >= node.clean_at - LATE_SLACK_S or",
        "finding.at >= node.clean_at - 3600.0 or",
    ),
    "a person's drain is taken over": (
        "decide/nodes.py",
        "    if node.view.drained and not node.drained_by_us and not is_ours(node.view):\n        turn.stamp",
        "    if node.view.drained and node.drained_by_us and not is_ours(node.view):\n        turn.stamp",
    ),
    "one node that fails again takes all places of its group": (
        "decide/records/node.py",
        "return taken[node] < limit if node in taken else len(taken) < limit",
        "return taken.total() < limit",
    ),
    "one node is fenced as often as its agent likes": (
        "decide/records/node.py",
        "return taken[node] < limit if node in taken else len(taken) < limit",
        "return node in taken or len(taken) < limit",
    ),
    "a health checker clears what we hold against a node": (
        "decide/nodes.py",
        "    if is_checkers(old):\n        return False",
        "    if is_checkers(old):\n        return node.phase is NodeState.SUSPECT",
    ),
    "a person's command approves every later order of its rung": (
        "decide/restart.py",
        "        job_record.asked_is_given(turn, job, order.remedy)\n",
        "",
    ),
    # --- decide: restarts ---
    "what the scheduler requeued by itself may use bad nodes": (
        "decide/jobs.py",
        'by the scheduler or a person")\n        restart.keep_off_bad(turn, job)\n',
        'by the scheduler or a person")\n',
    ),
    "what a person let go may use bad nodes": (
        "decide/jobs.py",
        'released it")\n            restart.keep_off_bad(turn, job)\n',
        'released it")\n',
    ),
    "a queued job may start on a node that the brake holds back later": (
        "decide/nodes.py",
        "        turn.unfenced.append(node.name)\n",
        "        pass\n",
    ),
    "a node that could not be quarantined is forgotten": (
        "decide/nodes.py",
        "    node_record.fence_failed(turn, node)\n",
        "",
    ),
    "what observe kept from a node counts for its job": (
        "model/records.py",
        "one.about == about and remedy",
        "remedy",
    ),
    "a restart that waits for approval leaves one bad node of two": (
        "decide/recovery.py",
        "    if incident is not None and asked:",
        "    if incident is None and asked:",
    ),
    "the requeue is of the start that made the attempt": (
        "decide/restart.py",
        "        restart_count=job.view.restart_count,\n        gone=",
        "        restart_count=job.attempt.restart_count if job.attempt else 0,\n        gone=",
    ),
    "a release has the epoch of the attempt before": (
        "decide/restart.py",
        "    job_record.next_epoch(job)\n    turn.orders.issue(\n        turn.order(\n            o.ReleaseJob",
        "    turn.orders.issue(\n        turn.order(\n            o.ReleaseJob",
    ),
    "bad numbers go one checkpoint back and no further": (
        "decide/restart.py",
        "bad = min(loaded, job.restore_step_max) if job.restore_step_max is not None else loaded",
        "bad = loaded",
    ),
    "nodes that are not fenced yet are given out": (
        "decide/restart.py",
        "names.update(name for name in incident.nodes_open if known[name].phase in _UNFENCED)",
        "pass",
    ),
    "a repaired node stays excluded": (
        "decide/restart.py",
        "    job_record.readmit(job, [n for n in free if known[n].clean_at and known[n].phase is NodeState.HEALTHY])\n",
        "",
    ),
    "what a person asked for costs a retry": (
        "decide/restart.py",
        "    if not asked_for(turn, job, incident) and not _held_again(job):",
        "    if not _held_again(job):",
    ),
    "the owner's number of requeues is ignored": (
        "decide/ladder.py",
        "max_requeues=limits.max_requeues if spec.max_requeues is None else spec.max_requeues",
        "max_requeues=limits.max_requeues",
    ),
    "a start that a person caused while evidence settled is not seen": (
        "decide/jobs.py",
        "    if job.in_queue and job.state is JobState.DIAGNOSING:\n        restart.adopt",
        "    if job.in_queue and job.state is JobState.HELD:\n        restart.adopt",
    ),
    # --- launch ---
    "every answer makes the lease longer": (
        "launch/core/lease.py",
        "self._until = max(self._until, sent + lease_s)",
        "self._until = max(self._until, self._until + lease_s)",
    ),
    "a launcher that is cut off renews its lease": (
        "launch/core/lease.py",
        "        if report.is_cut:\n            return []\n        if report.found",
        "        if report.found",
    ),
    "an epoch is used twice": (
        "launch/core/fence.py",
        "epoch = max(report.epoch, self.epoch + 1)",
        "epoch = max(report.epoch, self.epoch)",
    ),
    "an attempt's number is used twice after a kill": (
        "launch/core/fence.py",
        "            self.attempt = max(self.attempt, report.folder_attempt)\n",
        "            pass\n",
    ),
    "a second signal hurries nobody": (
        "launch/core/shutdown.py",
        "return [Hurry(), EndRanks(report.attempt)] if report.is_ours else []",
        "return []",
    ),
    "a follower of a leader that hangs goes on": (
        "launch/core/follower.py",
        "if is_over and held is not None and not held.is_ending:",
        "if is_over and self._away_since is not None and held is not None and not held.is_ending:",
    ),
    "events are lost while the controller is away": (
        "launch/uplink.py",
        "                pause_s = min(_RETRY_MAX_S, pause_s * 2)\n                continue\n",
        "                pause_s = min(_RETRY_MAX_S, pause_s * 2)\n",
    ),
    "a job that must not be requeued waits for its requeue": (
        "launch/core/shutdown.py",
        "waits = report.is_told and report.code != EXIT_DO_NOT_REQUEUE",
        "waits = report.is_told",
    ),
    # --- controller ---
    "who was not listened to was silent": (
        "controller/presence.py",
        "if now - last > DEAF_FACTOR * self._settings.tick_s:",
        "if now - last < -DEAF_FACTOR * self._settings.tick_s:",
    ),
    "an order that is taken back runs on": (
        "controller/executors.py",
        "            running.cancel()",
        "            pass",
    ),
    "two orders about a node run in parallel": (
        "controller/executors.py",
        'return f"node:{order.node}" if',
        'return f"node:{order.node}:{order.id}" if',
    ),
    "a notice is repeated to those who have it": (
        "controller/executors.py",
        "if index not in told:",
        "if index >= 0:",
    ),
    "checks that could not be run count as failed": (
        "controller/executors.py",
        "if isinstance(order, o.ValidateNode) and isinstance(error, PermanentOrderError):",
        "if isinstance(order, o.ValidateNode):",
    ),
    "an event that comes twice in a batch is judged twice": (
        "controller/intake.py",
        "event.id in stored or event.id in fresh or event.id",
        "event.id in stored or event.id",
    ),
    "a standby waits for its own lease, not the holder's": (
        "controller/election.py",
        "patience_s = max(self.lease_s, row.lease_s) * (1.0 + MARGIN)",
        "patience_s = self.lease_s * (1.0 + MARGIN)",
    ),
    "a renewal counts from its answer": (
        "controller/election.py",
        "leading.until - clock.monotonic())))\n        else:\n            leading.renewed(asked_at)",
        "leading.until - clock.monotonic())))\n        else:\n            leading.renewed(clock.monotonic())",
    ),
    "a node that was heard since is said to be gone": (
        "controller/claims.py",
        'if self._presence.heard_at(f"node:{claim.node}") > made_at:',
        'if self._presence.heard_at(f"node:{claim.node}") < made_at - CLAIM_S:',
    ),
    # --- adapters ---
    "Slurm: the owner's exclusions are lost": (
        "adapters/slurm/job_orders.py",
        "wanted = tuple(dict.fromkeys([*own, *order.nodes]))",
        "wanted = tuple(dict.fromkeys(order.nodes))",
    ),
    "Slurm: somebody else's drain is lifted": (
        "adapters/slurm/node_orders.py",
        "        if not is_ours(node):\n            raise PermanentOrderError",
        "        if not node.reason:\n            raise PermanentOrderError",
    ),
    "Slurm: a node comes back into one of its partitions": (
        "adapters/slurm/node_orders.py",
        "            for name in back:",
        "            for name in back[:1]:",
    ),
    "Slurm: only the first lost node is set down": (
        "adapters/slurm/job_orders.py",
        "        if lost:\n            await self._tool.run(commands.set_nodes(lost,",
        "        if lost:\n            await self._tool.run(commands.set_nodes(lost[:1],",
    ),
    "Kubernetes: somebody else's cordon is taken over": (
        "adapters/kubernetes/node_orders.py",
        '        if node.spec.unschedulable and not is_ours(node):\n            return f"cordoned',
        '        if node.spec.unschedulable and is_ours(node):\n            return f"cordoned',
    ),
    "Kubernetes: a new machine that a person took out is marked": (
        "adapters/kubernetes/node_orders.py",
        "        if not theirs.startswith(PREFIX):\n            return ",
        "        if theirs.startswith(PREFIX + PREFIX):\n            return ",
    ),
    "Kubernetes: a drain evicts what every node has": (
        "adapters/kubernetes/node_orders.py",
        'and not (owner is not None and owner.kind == "DaemonSet")',
        "",
    ),
    "Kubernetes: an order for the machine before acts on the new one": (
        "adapters/kubernetes/node_orders.py",
        'if stale:\n            raise PermanentOrderError(f"{order.node} is another',
        'if stale and not asked:\n            raise PermanentOrderError(f"{order.node} is another',
    ),
    "notices are told again after a restart": (
        "adapters/notify/outbox.py",
        "                waiting.pop(number, None)\n",
        "                waiting.get(number)\n",
    ),
}
"""Name -> file below `src/holdfast`, its text, the text with the bug."""
