"""Writes docs/observability.md: `python docs/make_observability.py`. Families come from the collectors themselves."""

# ruff: noqa: E501 - prose and rows of tables are one line each

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from holdfast.adapters.clock import SystemClock
from holdfast.adapters.memory import MemoryNotifier
from holdfast.adapters.notify.outbox import Outbox
from holdfast.adapters.notify.routing import Facts, NotifyConfig
from holdfast.adapters.slurm.figures import SlurmCollector, parse_jobs
from holdfast.agent.metrics import AgentCollector
from holdfast.api.limits import LimitGate
from holdfast.api.metrics import PHASES, ControllerCollector, Tally
from holdfast.controller import Figures, Health
from holdfast.controller.fleet import Fleet
from holdfast.wiring.certificate_watch import CertificateWatch

PAGE = Path(__file__).parent / "observability.md"
RULES = PAGE.parent.parent / "deploy/observability/prometheus/holdfast.rules.yml"

HEAD = """\
# Metrics, alerts, dashboards

`/metrics` of the controller (port 8470) and of each agent (`metrics = "HOST:9471"` in agent.toml) speak Prometheus text.
No token is needed; the controller's families that name single jobs (`holdfast_job_*`) are shown to a scrape with a viewer's token (`authorization: {credentials_file: ...}`
in the scrape's configuration), or to all with `[api] open_metrics = true` in the controller's holdfast.toml.
A standby answers 503, and so does a controller once another leads. While the journal cannot tell who leads, there are figures of the process alone, and
`holdfast_journal_failing` is 1.
`deploy/observability/` holds what goes with them:

| file | what |
|---|---|
| `prometheus/prometheus.yml` | an example of what to scrape, with `remote_write` to a long-term store |
| `prometheus/holdfast.rules.yml` | recording and alerting rules; `holdfast.rules.test.yml` beside it are their tests (`promtool test rules`) |
| `alertmanager/alertmanager.yml` | an example of routing, inhibition and receivers: webhook, e-mail, Slack, SNS |
| `grafana/dashboards/*.json` | GPU Health, Slurm Jobs, Network Performance, Recovery; 30 s refresh, 1 h to 30 d, marks for injected, detected, recovered |
| `grafana/make_dashboards.py` | makes them, by grafana-foundation-sdk |

The test suite runs every alert through promtool, and every query of rules and dashboards against a real Prometheus that scrapes a real controller and
agent; those that ask for other exporters (DCGM, node_exporter's InfiniBand) are only checked to be understood there. Alerts go through a real
Alertmanager to receivers on the test machine: a real mail server, and stand-ins for Slack's and SNS's HTTP. No Grafana takes part: none can be
installed there by a package manager. Every dashboard is checked instead, field by field, against Grafana's published schema as grafana-foundation-sdk
carries it.

## Waiting times

`slurm_job_wait_seconds` is a histogram for each user, from 10 s to 30 days, up to 200 users (later ones count as `(others)`). The rule
`holdfast:slurm_job_wait_seconds_bucket:5m` records it every five minutes, so that Prometheus can read 30 days of it at once. The dashboard Slurm Jobs
shows the jobs of the chosen users by time waited, and each user's median, over the range that is chosen: 1 h to 30 d.

## Rolling it out

1. Prometheus: copy `prometheus.yml` and the rules, name your hosts. `promtool check config prometheus.yml`.
2. Agents: `metrics = "0.0.0.0:9471"` in agent.toml of every node, where only the monitoring network reaches that port.
3. Exporters beside them, by your own provisioning (packages `prometheus-node-exporter`, NVIDIA's `dcgm-exporter`): ports 9100 and 9400 on each node.
4. Slurm: from 25.11 slurmctld has metrics of its own; before, `holdfast slurm-exporter` on one machine that may run `squeue`: it asks `squeue` and `sinfo`
   once a scrape, at most every 5 s. Times that jobs waited and ran are counted when a look first shows them started or ended, so its scrape interval
   must be below slurm.conf's `MinJobAge` (300 s by default).
5. `remote_write` in prometheus.yml for what must outlive this Prometheus; have Prometheus scrape itself, so that its own series say how far a store is behind.
6. `holdfast doctor --prometheus URL` then says, exporter by exporter, how many targets are scraped and answer, how old the newest sample is and which
   versions run (nodes that were forgotten in an upgrade show as a second version), whether the rules are loaded and evaluate, and whether each remote
   store keeps up; it ends with 1 when something that should answer does not. Without the option it looks at this machine's own ports 9100, 9400, 9471, 9472.
7. Grafana: import the four files; each asks for its Prometheus once.

What a drill did on purpose carries the label `drill="true"` (nodes, open incidents, and so their alerts); the Alertmanager example calls nobody for it,
and `NodeCountDrop` does not count nodes that a drill has taken away.

Labels are bounded: states, domains, kinds, groups, partitions. Single nodes are named only while they are not healthy, single jobs only while they run
under guard, each up to 500; users of the Slurm exporter up to 200.
"""
TRACES = """\
## Traces

With `pip install 'holdfast[otel]'` and

```toml
[traces]
endpoint = "http://collector:4318/v1/traces"   # OTLP over HTTP
headers_file = "/etc/holdfast/otlp-headers"    # `name: value` lines, mode 0600; may be left out
cluster = "training-a"                         # default: the cluster's name in job ids
```

in the controller's holdfast.toml (or OpenTelemetry's own `OTEL_EXPORTER_OTLP_ENDPOINT`), each incident that closes is sent as one trace: a root from the
fault to the close with cause, domain, outcome, jobs, nodes, drill and the findings as events, a span for each phase of the timeline (`detect`, `diagnose`,
`isolate`, ... `prove`), and `repair node`, `return node`. A job that was given up is an error. Ids come from the incident's own, so the same incident is
the same trace. Recovery never waits for the collector: what it does not take is tried again and then dropped, and what a killed controller had not sent
is not sent later; the journal has it all (`holdfast incident`, `holdfast report`).
"""


def families(collected: Iterable[Any]) -> list[str]:
    """Rows of a table."""
    rows = []
    for family in collected:
        suffix = "_total" if family.type == "counter" else "_info" if family.type == "info" else ""
        rows.append(f"| `{family.name}{suffix}` | {family.type} | {family.documentation} |")
    return rows


def controller() -> Iterable[Any]:
    """The controller's families."""
    health = Health(
        ok=True, ready=True, seq=0, epoch=0, queue=0, orders=0, failing="", blind=False, looked_at=0.0
    )  # fmt: skip
    stand_in: Any = SimpleNamespace(health=lambda: health, figures=Figures(), presence=SimpleNamespace(beats=0))
    return ControllerCollector(stand_in, Fleet(), Tally(), LimitGate()).collect()


def notices() -> Iterable[Any]:
    """The outbox's families."""
    clock: Any = MemoryNotifier()
    return Outbox(NotifyConfig(), PAGE, clock, lambda _notice: Facts(), clock).collect()


def agent() -> Iterable[Any]:
    """An agent's families."""
    health = SimpleNamespace(verdicts={}, looks=0, open=(), looker=SimpleNamespace(gpus=()))
    stand_in: Any = SimpleNamespace(
        reporter=SimpleNamespace(spool=_Spool(), refused=0), kernel_findings=0, health=health, heard=True,
        blind="", parser=SimpleNamespace(why="", deaths=0, skipped=0),
    )  # fmt: skip
    return AgentCollector(stand_in).collect()


class _Spool:
    dropped = 0

    def __len__(self) -> int:
        return 0


class _NoJobs:
    def __call__(self) -> Any:
        return SimpleNamespace(at=0.0, jobs=parse_jobs(""), nodes={})


def certificate() -> Iterable[Any]:
    """The family of a controller that serves HTTPS."""
    watch = CertificateWatch(None, (), Path(), SystemClock())
    watch.ends_at = 1.0
    return watch.collect()


def alerts() -> list[str]:
    """Rows of the alerts' table."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [
        f"| [`{rule['alert']}`](alerts.md#{rule['alert'].lower()}) | {rule['labels']['severity']} | {rule.get('for', 'at once')} | {rule['annotations']['action']} |"
        for group in groups
        for rule in group["rules"]
        if "alert" in rule
    ]


def page() -> str:
    """The whole page."""
    table = ["", "| metric | type | what |", "|---|---|---|"]
    phases = ", ".join(f"`{name}` ({begin} to {end})" for name, begin, end in PHASES)
    return "\n".join(
        [
            HEAD,
            "## Alerts", "", "| alert | severity | for | what to do |", "|---|---|---|---|", *alerts(), "",
            "## The controller", *table, *families(controller()), *families(notices()), *families(certificate()), "",
            f"Phases of `holdfast_recovery_phase_seconds`: {phases}.", "",
            "## An agent", *table, *families(agent()), "",
            "## Slurm's exporter", *table, *families(SlurmCollector(_NoJobs(), look_again_s=0.0).collect()), "",
            TRACES,
        ]
    )  # fmt: skip


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
