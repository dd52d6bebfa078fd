"""Writes the four dashboards beside this file: `python deploy/observability/grafana/make_dashboards.py`.

Made by code, so that every panel has a unit, a description and the same look, and so that a test can take each query
out and run it against a real Prometheus. The test also compares the written files with what this makes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders import bargauge, prometheus, stat, table, timeseries
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import bargauge as bargauge_model
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import stat as stat_model
from grafana_foundation_sdk.models import table as table_model
from grafana_foundation_sdk.models import timeseries as timeseries_model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

FOLDER = Path(__file__).parent / "dashboards"
SOURCE = model.DataSourceRef(type_val="prometheus", uid="${source}")
WIDE, HALF, THIRD, QUARTER = 24, 12, 8, 6
WAITS = 'holdfast:slurm_job_wait_seconds_bucket:5m{user=~"$user"}'
"""Waiting times at a resolution at which 30 days can be read at once."""
RANGES = ("1h", "3h", "6h", "12h", "24h", "2d", "7d", "14d", "30d")
ANNOTATIONS = (
    ("injected", "purple", "sum by (kind) (increase(holdfast_drills_fired_total[$__interval])) > 0"),
    ("detected", "red", "increase(holdfast_incidents_opened_total[$__interval]) > 0"),
    (
        "recovered",
        "green",
        'sum by (domain) (increase(holdfast_incidents_closed_total{outcome="recovered"}[$__interval])) > 0',
    ),
)  # fmt: skip


def query(expression: str, legend: str = "", *, instant: bool = False) -> prometheus.Dataquery:
    """One question to Prometheus."""
    asked = prometheus.Dataquery().expr(expression).datasource(SOURCE).legend_format(legend or "__auto")
    return asked.instant().format(PromQueryFormat.TABLE) if instant else asked.range()


def graph(title: str, text: str, unit: str, *queries: tuple[str, str], span: int = HALF) -> timeseries.Panel:
    """Lines over time."""
    panel = timeseries.Panel().title(title).description(text).unit(unit).datasource(SOURCE).span(span).height(8)
    for place, (expression, legend) in enumerate(queries):
        panel.with_target(query(expression, legend).ref_id(chr(ord("A") + place)))
    return panel


def number(
    title: str, text: str, unit: str, expression: str, *, bad_above: float | None = None, span: int = QUARTER
) -> stat.Panel:
    """One number, red above `bad_above`."""
    steps = [model.Threshold(value=None, color="green")]
    if bad_above is not None:
        steps.append(model.Threshold(value=bad_above, color="red"))
    limits = build.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(steps)
    panel = stat.Panel().title(title).description(text).unit(unit).datasource(SOURCE).span(span).height(4)
    return panel.thresholds(limits).with_target(query(expression).ref_id("A"))


def listing(title: str, text: str, expression: str, *, span: int = HALF) -> table.Panel:
    """A table of what is so now."""
    panel = table.Panel().title(title).description(text).datasource(SOURCE).span(span).height(8)
    return panel.with_target(query(expression, instant=True).ref_id("A"))


def bars(title: str, text: str, unit: str, expression: str, legend: str, *, buckets: bool = False) -> bargauge.Panel:
    """A bar for each series, over the whole range that is looked at; `buckets`: a histogram's, by upper bound."""
    asked = prometheus.Dataquery().expr(expression).datasource(SOURCE).legend_format(legend).instant().ref_id("A")
    if buckets:
        asked.format(PromQueryFormat.HEATMAP)
    panel = bargauge.Panel().title(title).description(text).unit(unit).datasource(SOURCE).span(HALF).height(8)
    return panel.with_target(asked)


def begin(title: str, uid: str, text: str) -> build.Dashboard:
    """An empty dashboard with what all four share."""
    board = (
        build.Dashboard(title)
        .uid(uid)
        .description(text)
        .tags(["holdfast"])
        .refresh("30s")
        .time("now-1h", "now")
        .timezone("browser")
        .readonly()
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .with_variable(build.DatasourceVariable("source").label("Prometheus").type("prometheus"))
        .link(
            build.DashboardLink("Holdfast")
            .type(model.DashboardLinkType.DASHBOARDS)
            .tags(["holdfast"])
            .as_dropdown(True)
        )
    )
    for name, colour, expression in ANNOTATIONS:
        board.annotation(
            build.AnnotationQuery().name(name).enable(True).icon_color(colour).datasource(SOURCE).expr(expression)
        )
    return board


def gpu_health() -> build.Dashboard:
    """Temperatures, power, errors: Holdfast's agents, and DCGM's exporter where it runs."""
    board = begin("GPU Health", "holdfast-gpu", "Every GPU: heat, power, use, memory and link errors.")
    hot = "GPUs above 85 C now; the alert GpuTooHot waits for five minutes."
    parts: list[Any] = [
        number("Hottest GPU", "Of all nodes, now.", "celsius",
               "max(holdfast_gpu_temperature_celsius or DCGM_FI_DEV_GPU_TEMP)", bad_above=85),
        number("GPUs too hot", hot, "none", "count(holdfast_gpu_temperature_celsius > 85) or vector(0)", bad_above=1),
        number("GPUs lost", "The driver cannot reach them.", "none", "sum(holdfast_gpu_lost) or vector(0)", bad_above=1),
        number("Checks failing", "Checks of agents that say critical.", "none",
               "count(holdfast_check_status == 2) or vector(0)", bad_above=1),
        graph("Temperature", "Core temperature; slowdown begins near 87 C on most boards.", "celsius",
              ("topk(20, holdfast_gpu_temperature_celsius)", "{{instance}} GPU {{gpu}}"),
              ("topk(20, DCGM_FI_DEV_GPU_TEMP)", "{{Hostname}} GPU {{gpu}} (DCGM)")),
        graph("Memory temperature", "HBM, where the board reports it.", "celsius",
              ("topk(20, holdfast_gpu_memory_temperature_celsius)", "{{instance}} GPU {{gpu}}"),
              ("topk(20, DCGM_FI_DEV_MEMORY_TEMP)", "{{Hostname}} GPU {{gpu}} (DCGM)")),
        graph("Power", "A GPU far below its neighbours of the same job is throttled or idle.", "watt",
              ("topk(20, holdfast_gpu_power_watts)", "{{instance}} GPU {{gpu}}"),
              ("topk(20, DCGM_FI_DEV_POWER_USAGE)", "{{Hostname}} GPU {{gpu}} (DCGM)")),
        graph("Utilisation", "Part of the time in which a kernel ran.", "percentunit",
              ("bottomk(20, holdfast_gpu_utilization_ratio)", "{{instance}} GPU {{gpu}}"),
              ("bottomk(20, DCGM_FI_DEV_GPU_UTIL / 100)", "{{Hostname}} GPU {{gpu}} (DCGM)")),
        graph("Uncorrected memory errors", "Any of them may have ended a job.", "none",
              ("increase(holdfast_gpu_ecc_uncorrected_total[5m]) > 0", "{{instance}} GPU {{gpu}}"),
              ("increase(DCGM_FI_DEV_ECC_DBE_VOL_TOTAL[5m]) > 0", "{{Hostname}} GPU {{gpu}} (DCGM)")),
        graph("Corrected memory errors", "A rising rate foretells uncorrected ones.", "none",
              ("topk(10, increase(holdfast_gpu_ecc_corrected_total[5m]))", "{{instance}} GPU {{gpu}}")),
        graph("PCIe packets sent again", "A loose riser or a dying switch.", "none",
              ("topk(10, increase(holdfast_gpu_pcie_replays_total[5m]))", "{{instance}} GPU {{gpu}}"),
              ("topk(10, increase(DCGM_FI_DEV_PCIE_REPLAY_COUNTER[5m]))", "{{Hostname}} GPU {{gpu}} (DCGM)")),
        graph("Xid of the driver", "The last Xid that DCGM saw.", "none",
              ("DCGM_FI_DEV_XID_ERRORS > 0", "{{Hostname}} GPU {{gpu}}")),
        listing("Checks that are not ok", "1 warning, 2 critical, 3 unknown.", "holdfast_check_status > 0"),
        listing("Nodes that are not healthy", "As Holdfast sees them.", "holdfast_node_unhealthy"),
    ]  # fmt: skip
    return whole(board, parts)


def slurm_jobs() -> build.Dashboard:
    """The queue and the jobs under guard: Slurm's exporter, and Holdfast's own view."""
    board = begin("Slurm Jobs", "holdfast-jobs", "The queue, how long jobs wait and run, and what Holdfast guards.")
    users = build.QueryVariable("user").label("User").datasource(SOURCE).include_all(True).all_value(".*").multi(True)
    users.current(model.VariableOption(selected=True, text="All", value="$__all"))
    users.refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
    board.with_variable(users.query("label_values(slurm_job_wait_seconds_count, user)"))
    parts: list[Any] = [
        number("Running", "Jobs that run now.", "none", 'sum(slurm_jobs{state="running"}) or vector(0)'),
        number("Pending", "Jobs that wait now.", "none", 'sum(slurm_jobs{state="pending"}) or vector(0)'),
        number("Longest wait", "The oldest pending job.", "s",
               "max(holdfast:jobs_pending_age_seconds:max) or vector(0)", bad_above=1800),
        number("Under guard", "Jobs whose recovery is Holdfast's.", "none", "count(holdfast_job_step) or vector(0)"),
        graph("Jobs by state", "As Slurm counts them.", "none", ("sum by (state) (slurm_jobs)", "{{state}}")),
        graph("Pending age by partition", "The oldest pending job of each.", "s",
              ("max by (partition) (slurm_job_pending_age_seconds_max)", "{{partition}}"),
              ("holdfast:jobs_pending_age_seconds:max", "{{partition}} (Holdfast)")),
        graph("Pending age by user", "The ten who wait longest.", "s",
              ("topk(10, max by (user) (slurm_job_pending_age_seconds_max))", "{{user}}")),
        graph("Time waited", "Of jobs that started: median and 95th percentile.", "s",
              ("histogram_quantile(0.5, sum by (le) (increase(slurm_job_wait_seconds_bucket[1h])))", "median"),
              ("histogram_quantile(0.95, sum by (le) (increase(slurm_job_wait_seconds_bucket[1h])))", "p95")),
        bars("Jobs by time waited", "Jobs of the chosen users that started in the range, by how long they had waited.",
             "none", f"sum by (le) (increase({WAITS}[$__range]))", "{{le}}", buckets=True),
        bars("Time waited by user", "Median of the range, the twenty who waited longest.", "s",
             f"topk(20, histogram_quantile(0.5, sum by (user, le) (increase({WAITS}[$__range]))))", "{{user}}"),
        graph("Time run", "Of jobs that ended: median and 95th percentile.", "s",
              ("histogram_quantile(0.5, sum by (le) (increase(slurm_job_run_seconds_bucket[1h])))", "median"),
              ("histogram_quantile(0.95, sum by (le) (increase(slurm_job_run_seconds_bucket[1h])))", "p95")),
        graph("Nodes by state", "As Slurm sees them.", "none", ("sum by (state) (slurm_nodes)", "{{state}}")),
        graph("Node-seconds lost", "Nodes that could not take work, per second.", "none",
              ("sum by (state) (rate(slurm_node_unavailable_seconds_total[5m]))", "{{state}}")),
        graph("Jobs by state of recovery", "As Holdfast sees them.", "none",
              ("sum by (state) (holdfast_jobs)", "{{state}}")),
        graph("Steps", "Newest step of each guarded job; a flat line does not train.", "none",
              ("topk(20, holdfast_job_step)", "{{job}}")),
        graph("Age of the newest checkpoint", "What a fault would cost now.", "s",
              ("topk(20, holdfast:checkpoint_age_seconds)", "{{job}}")),
    ]  # fmt: skip
    return whole(board, parts)


def network() -> build.Dashboard:
    """Traffic, errors and link state: agents' own counters, node_exporter's InfiniBand, DCGM's NVLink."""
    board = begin("Network Performance", "holdfast-network", "Ethernet, InfiniBand and NVLink of all nodes.")
    parts: list[Any] = [
        number("Traffic", "All devices of all nodes.", "Bps", "sum(rate(holdfast_network_bytes_total[2m])) or vector(0)",
               span=THIRD),
        number("Errors", "Packets in error, the last hour.", "none",
               "sum(increase(holdfast_network_errors_total[1h])) or vector(0)", bad_above=1, span=THIRD),
        number("Network incidents", "Open ones.", "none",
               'sum(holdfast_incidents_open{domain="network"}) or vector(0)', bad_above=1, span=THIRD),
        graph("Received", "The busiest devices.", "Bps",
              ('topk(20, rate(holdfast_network_bytes_total{direction="receive"}[2m]))', "{{instance}} {{device}}")),
        graph("Sent", "The busiest devices.", "Bps",
              ('topk(20, rate(holdfast_network_bytes_total{direction="transmit"}[2m]))', "{{instance}} {{device}}")),
        graph("Errors", "A bad cable or transceiver.", "none",
              ("increase(holdfast_network_errors_total[5m]) > 0", "{{instance}} {{device}} {{direction}}")),
        graph("Drops", "Buffers that overflow: congestion, or a slow receiver.", "none",
              ("increase(holdfast_network_drops_total[5m]) > 0", "{{instance}} {{device}} {{direction}}")),
        graph("InfiniBand received", "node_exporter's counters.", "Bps",
              ("topk(20, rate(node_infiniband_port_data_received_bytes_total[2m]))", "{{instance}} {{device}}:{{port}}")),
        graph("InfiniBand sent", "node_exporter's counters.", "Bps",
              ("topk(20, rate(node_infiniband_port_data_transmitted_bytes_total[2m]))",
               "{{instance}} {{device}}:{{port}}")),
        graph("InfiniBand errors", "Symbol errors, link errors and links that went down.", "none",
              ("increase(node_infiniband_port_errors_received_total[5m]) > 0", "{{instance}} {{device}}:{{port}} errors"),
              ("increase(node_infiniband_link_downed_total[5m]) > 0", "{{instance}} {{device}}:{{port}} down")),
        graph("NVLinks up", "Fewer than a board has: a link is down.", "none",
              ("bottomk(20, holdfast_gpu_links_up)", "{{instance}} GPU {{gpu}}")),
        graph("NVLink traffic", "DCGM's counter.", "Bps",
              ("topk(20, rate(DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL[2m]))", "{{Hostname}} GPU {{gpu}}")),
        graph("Network findings", "What Holdfast found, by severity.", "none",
              ('sum by (severity) (increase(holdfast_findings_total{domain="network"}[5m]))', "{{severity}}")),
    ]  # fmt: skip
    return whole(board, parts)


def recovery() -> build.Dashboard:
    """Incidents, how long each phase takes, and whether Holdfast itself is well."""
    board = begin(
        "Recovery", "holdfast-recovery", "Incidents, time to detect, isolate and recover, and Holdfast itself."
    )
    parts: list[Any] = [
        number("Open incidents", "Now.", "none", "sum(holdfast_incidents_open) or vector(0)", bad_above=1),
        number("Recovered today", "Incidents that ended in a proven recovery.", "none",
               'sum(increase(holdfast_incidents_closed_total{outcome="recovered"}[1d])) or vector(0)'),
        number("Time to recover", "Median of the last day: fault to first step.", "s",
               'holdfast:recovery_seconds:p50_1d{phase="recover"}'),
        number("Healthy nodes", "Part of all.", "percentunit",
               'sum(holdfast_nodes{state="healthy"}) / sum(holdfast_nodes)'),
        graph("Phases, median", "Of incidents closed in the last day.", "s",
              ("holdfast:recovery_seconds:p50_1d", "{{phase}}")),
        graph("Phases, 95th percentile", "Of incidents closed in the last day.", "s",
              ("holdfast:recovery_seconds:p95_1d", "{{phase}}")),
        graph("Incidents opened", "Per hour.", "none", ("increase(holdfast_incidents_opened_total[1h])", "opened")),
        graph("Incidents closed", "Per hour, by outcome.", "none",
              ("sum by (outcome) (increase(holdfast_incidents_closed_total[1h]))", "{{outcome}}")),
        graph("Incidents open", "By domain.", "none", ("sum by (domain) (holdfast_incidents_open)", "{{domain}}")),
        graph("Findings", "Per minute, by domain.", "none",
              ("sum by (domain) (rate(holdfast_findings_total[5m]) * 60)", "{{domain}}")),
        graph("Orders", "Given, by kind.", "none",
              ('sum by (kind) (increase(holdfast_orders_total{kind!~".*timer|notify"}[5m]))', "{{kind}}"),
              ("sum by (outcome) (increase(holdfast_order_outcomes_total[5m]))", "{{outcome}}")),
        graph("Nodes by state", "As Holdfast sees them.", "none",
              ("sum by (state) (holdfast_nodes)", "{{state}}")),
        graph("Steps done again", "What faults cost.", "none", ("increase(holdfast_lost_steps_total[1h])", "steps")),
        graph("Brakes", "1: quarantines of this group are held back.", "none", ("holdfast_brake_tripped", "{{group}}")),
        listing("Nodes that are not healthy", "As Holdfast sees them.", "holdfast_node_unhealthy"),
        graph("Journal", "95th percentile of a transaction, and events a second.", "s",
              ("histogram_quantile(0.95, sum by (le) (rate(holdfast_journal_append_seconds_bucket[5m])))", "append p95"),
              ("sum(rate(holdfast_events_total[5m]))", "events/s")),
        graph("Holdfast itself", "Ready and not blind: 1 and 0.", "none",
              ("holdfast_ready", "ready"), ("holdfast_watch_blind", "blind"),
              ("holdfast_journal_failing", "journal failing"), ("holdfast_queue_events", "waiting events")),
        graph("Notices", "Sent and failed, by destination.", "none",
              ("sum by (destination, outcome) (increase(holdfast_notices_total[5m]))", "{{destination}} {{outcome}}")),
    ]  # fmt: skip
    return whole(board, parts)


def whole(board: build.Dashboard, parts: list[Any]) -> build.Dashboard:
    """The board with its panels."""
    for part in parts:
        board.with_panel(part)
    return board


def _reduced() -> common.ReduceDataOptions:
    return common.ReduceDataOptions(calcs=["lastNotNull"])


def _legend() -> common.VizLegendOptions:
    place, mode = common.LegendPlacement.BOTTOM, common.LegendDisplayMode.LIST
    return common.VizLegendOptions(display_mode=mode, placement=place, show_legend=True)


OPTIONS: dict[str, Callable[[], Any]] = {
    "bargauge": lambda: bargauge_model.Options(reduce_options=_reduced()),
    "stat": lambda: stat_model.Options(reduce_options=_reduced()),
    "table": table_model.Options,
    "timeseries": lambda: timeseries_model.Options(legend=_legend()),
}
"""The schema wants options in every panel; the SDK's builders leave them null where none is set."""
BOARDS = {"gpu-health": gpu_health, "slurm-jobs": slurm_jobs, "network-performance": network, "recovery": recovery}


def texts() -> dict[Path, str]:
    """File -> what belongs into it."""
    found = {}
    for name, make in BOARDS.items():
        board = make().build()
        for panel in board.panels or []:
            panel.options = panel.options or OPTIONS[panel.type_val]()
        form = json.loads(JSONEncoder(sort_keys=True).encode(board))
        form["timepicker"] = {"refresh_intervals": ["30s", "1m", "5m"], "time_options": list(RANGES)}
        found[FOLDER / f"{name}.json"] = json.dumps(form, indent=1, sort_keys=True) + "\n"
    return found


def expressions(form: dict[str, Any]) -> list[str]:
    """Every question that a dashboard asks, annotations too."""
    found = [target["expr"] for panel in form["panels"] for target in panel.get("targets", [])]
    return found + [one["expr"] for one in form["annotations"]["list"]]


if __name__ == "__main__":
    for path, text in texts().items():
        path.write_text(text, encoding="utf-8")
