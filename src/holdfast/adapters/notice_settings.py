"""What `[notify]` of holdfast.toml may say. Read by every command that reads settings, so it loads nothing heavy."""

from __future__ import annotations

from msgspec import Struct

from holdfast.model.evidence import Severity


class Destination(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[notify.to]]` of holdfast.toml: one place that is told."""

    name: str
    url: str = ""
    """As Apprise writes it (docs/notices.md); holds secrets, so `url_file` is better."""
    url_file: str = ""
    """A file whose first line is the URL, mode 0600."""
    endpoint: str = ""
    """In place of the service's own address, where the service is reached by another one (SNS by a VPC endpoint)."""
    severity: Severity = Severity.INFO
    """At least this grave."""
    domains: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    """Empty: all. A notice that says nothing of partition or owner goes only to those that take all."""
    quiet: str = ""
    """Quiet hours, such as `22:00-07:00`."""
    zone: str = "UTC"
    quiet_unless: Severity = Severity.FATAL
    per_hour: int = 60
    resolved: bool = True
    """Tell also what is over."""
    mention: str = ""
    """Markup that calls people in a chat with each message, such as `<!here>`."""
    template: str = ""
    """Jinja: `notice`, `facts`, `links`; empty: Holdfast's own."""


class NotifyConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[notify]`."""

    link: str = ""
    """Address of the cockpit as people reach it; empty: notices carry no link."""
    dashboard: str = ""
    """Address of the Recovery dashboard."""
    group_s: float = 3.0
    """Notices of one matter that come within this time are one message."""
    allow: tuple[str, ...] = ()
    """Hosts and networks that are reached although they are not public, such as `10.0.0.0/8` or `relay.example.org`."""
    to: tuple[Destination, ...] = ()
