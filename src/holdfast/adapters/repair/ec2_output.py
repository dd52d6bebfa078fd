"""What EC2 and Auto Scaling answer, as values; and what their errors mean. Pure; `ec2.py` asks.

Error codes are those of AWS's own list for the EC2 API, the texts of scaling activities as its guides quote them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from holdfast.adapters.repair.words import Outcome, sentence
from holdfast.errors import OrderError, PermanentOrderError, TemporaryOrderError

GROUP_TAG = "aws:autoscaling:groupName"
_INSTANCE_ID = re.compile(r"\bi-[0-9a-f]{8,17}\b")
LIVE = frozenset({"pending", "running", "stopping", "stopped"})
COMING = frozenset({"pending", "running"})
_ENDED_AT = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")

_CODES: Mapping[Outcome, tuple[str, ...]] = {
    Outcome.NO_CAPACITY: (
        "InsufficientInstanceCapacity",
        "InsufficientHostCapacity",
        "InsufficientReservedInstanceCapacity",
        "InsufficientCapacity",
        "InsufficientCapacityOnHost",
        "ReservationCapacityExceeded",
        "InsufficientAddressCapacity",
        "InsufficientFreeAddressesInSubnet",
        "SpotMaxPriceTooLow",
        "Unsupported",
    ),
    Outcome.LIMIT: (
        "InstanceLimitExceeded",
        "VcpuLimitExceeded",
        "MaxSpotInstanceCountExceeded",
        "HostLimitExceeded",
        "NetworkInterfaceLimitExceeded",
        "VolumeLimitExceeded",
        "PendingVerification",
        "LimitExceeded",
    ),
    Outcome.PERMISSION: (
        "UnauthorizedOperation",
        "AccessDenied",
        "AccessDeniedException",
        "AuthFailure",
        "Blocked",
        "ExpiredToken",
        "InvalidClientTokenId",
        "OptInRequired",
        "RequestExpired",
        "SignatureDoesNotMatch",
    ),
    Outcome.TOO_FAST: (
        "RequestLimitExceeded",
        "Throttling",
        "ThrottlingException",
        "EC2ThrottledException",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
    ),
    Outcome.AWAY: ("InternalError", "InternalFailure", "ServiceUnavailable", "Unavailable", "500", "503"),
    Outcome.NOT_FOUND: ("InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed", "InvalidInstanceID"),
    Outcome.REFUSED: ("OperationNotPermitted", "IncorrectInstanceState", "IncorrectState"),
}
_OUTCOMES = {code: outcome for outcome, codes in _CODES.items() for code in codes}
_RETRY_S: Mapping[Outcome, float] = {Outcome.NO_CAPACITY: 60.0, Outcome.TOO_FAST: 10.0, Outcome.AWAY: 10.0}
"""What may be otherwise later; everything else needs a person."""

_TEXTS = (
    (Outcome.NO_CAPACITY, re.compile(r"InsufficientInstanceCapacity|not have (?:sufficient|enough) .{0,80}capacity")),
    (Outcome.LIMIT, re.compile(r"LimitExceeded|vCPU limit|(?i:more .{0,80}than your current .{0,80}limit)")),
    (Outcome.PERMISSION, re.compile(r"(?i:not authorized)|UnauthorizedOperation|AccessDenied|AuthFailure")),
)
"""What failed scaling activities say; the API's own code stands in most of them."""


class Instance(Struct, frozen=True, kw_only=True):
    """One instance, as DescribeInstances tells of it."""

    id: str
    state: str = ""
    launched_at: float = 0.0
    ended_at: float = 0.0
    """When its end was asked for; 0.0: not ended, or nobody said when."""
    private_dns: str = ""
    private_ip: str = ""
    subnet: str = ""
    tags: Mapping[str, str] = {}

    @property
    def group(self) -> str:
        """Its Auto Scaling group, empty when it is in none."""
        return self.tags.get(GROUP_TAG, "")


def instances(pages: Iterable[Mapping[str, Any]]) -> list[Instance]:
    """The instances of all pages of an answer, oldest first."""
    found = [
        _instance(one)
        for page in pages
        for reservation in page.get("Reservations", ())
        for one in reservation.get("Instances", ())
    ]
    return sorted(found, key=lambda one: (one.launched_at, one.id))


def _instance(one: Mapping[str, Any]) -> Instance:
    launched = one.get("LaunchTime")
    ended = _ENDED_AT.search(one.get("StateTransitionReason") or "")
    return Instance(
        id=one["InstanceId"],
        state=one.get("State", {}).get("Name", ""),
        launched_at=launched.timestamp() if launched is not None else 0.0,
        ended_at=datetime.strptime(ended[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp() if ended else 0.0,
        private_dns=one.get("PrivateDnsName") or "",
        private_ip=one.get("PrivateIpAddress") or "",
        subnet=one.get("SubnetId") or "",
        tags={tag["Key"]: tag["Value"] for tag in one.get("Tags", ())},
    )


def error_of(what: str, code: str, message: str) -> OrderError:
    """An error of the service, named.

    Args:
        what: the call, such as `RunInstances`.
        code: `Error.Code` of the answer.
        message: `Error.Message`.
    """
    outcome = _OUTCOMES.get(code) or _OUTCOMES.get(code.partition(".")[0]) or Outcome.FAILED
    text = sentence(outcome, f"EC2 {what}: {code}: {message}")
    if outcome in _RETRY_S:
        return TemporaryOrderError(text, retry_after_s=_RETRY_S[outcome])
    return PermanentOrderError(text)


def scaling_trouble(activities: Iterable[Mapping[str, Any]], since: float) -> tuple[Outcome, str] | None:
    """Why a group's newest activity since then could not launch; None when none has failed, or it went on after."""
    for one in activities:
        started = one.get("StartTime")
        if started is not None and started.timestamp() < since:
            return None
        if one.get("StatusCode") == "Successful":
            return None
        if one.get("StatusCode") in {"Failed", "Cancelled"}:
            words = one.get("StatusMessage") or one.get("Description") or "no reason given"
            kind = next((outcome for outcome, pattern in _TEXTS if pattern.search(words)), Outcome.FAILED)
            return kind, words
    return None


def named_instance(machine: str) -> str:
    """The EC2 instance that a machine's id names, with whatever prefix a scheduler gave it; empty: none."""
    found = _INSTANCE_ID.search(machine)
    return found[0] if found is not None else ""
