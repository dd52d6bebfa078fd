"""Wires notices: the outbox of `[notify]`, and what is known of a notice's matter when it is sent.

Called by `controller.py` and `notify.py`. No time passes here.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.adapters.notice_settings import NotifyConfig
from holdfast.adapters.notify.outbox import Outbox
from holdfast.adapters.notify.routing import STEPS, Facts, check
from holdfast.adapters.notify.services import AppriseDeliverer, check_address
from holdfast.controller.fleet import Fleet
from holdfast.model.orders import Notify
from holdfast.ports import Clock


class FleetFacts:
    """Looks a notice's incident, job and node up in the API's `Fleet`, which is set once there is one."""

    def __init__(self) -> None:
        self.fleet: Fleet | None = None

    def __call__(self, notice: Notify) -> Facts:
        """What is known; nothing while the fleet is not."""
        fleet = self.fleet
        if fleet is None:
            return Facts()
        incident = fleet.incidents.get(notice.incident) or fleet.incidents.get(notice.topic)
        names = [str(notice.job)] if notice.job is not None else list(incident.jobs) if incident is not None else []
        job = next((fleet.jobs[name] for name in names if name in fleet.jobs), None)
        node = fleet.nodes.get(notice.node)
        domain = incident.domain.value if incident is not None else ""
        return Facts(
            summary=incident.summary if incident is not None else "",
            domain=domain,
            partition=job.partition if job is not None else node.group if node is not None else "",
            owner=job.user if job is not None else "",
            is_over=incident is not None and bool(incident.closed_at),
            steps=(STEPS[domain],) if domain in STEPS and not (incident is not None and incident.closed_at) else (),
            drill=incident.drill if incident is not None else "",
        )


def check_destinations(config: NotifyConfig) -> None:
    """Raises ConfigError for a destination that cannot work, before the first notice is lost to it."""
    check(config)
    for one in config.to:
        check_address(one, config.allow)


def make_outbox(config: NotifyConfig, folder: Path, facts: FleetFacts, clock: Clock) -> Outbox:
    """The outbox of a controller's folder. Raises what `check_destinations` raises."""
    check_destinations(config)
    return Outbox(config, folder / "outbox.jsonl", AppriseDeliverer(config.allow), facts, clock)
