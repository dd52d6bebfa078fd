"""What EC2's answers mean, without a service."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from holdfast.adapters.repair.ec2_output import error_of, instances, scaling_trouble
from holdfast.adapters.repair.words import Outcome
from holdfast.errors import PermanentOrderError, TemporaryOrderError

AT = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)


def test_the_end_of_an_instance_is_read_from_its_reason() -> None:
    """`User initiated (2017-09-15 19:50:11 GMT)`, the form of the EC2 API Reference; other reasons name no time."""
    one = {"InstanceId": "i-1", "LaunchTime": AT, "State": {"Name": "terminated"},
           "StateTransitionReason": "User initiated (2026-11-21 12:30:00 GMT)"}  # fmt: skip
    spot = {"InstanceId": "i-2", "LaunchTime": AT, "StateTransitionReason": "Server.SpotInstanceTermination: reclaimed"}
    found = instances([{"Reservations": [{"Instances": [spot, one]}]}])
    assert [(one.id, one.ended_at) for one in found] == [("i-1", AT.timestamp() + 1800.0), ("i-2", 0.0)]


@pytest.mark.parametrize(
    ("code", "kind", "outcome"),
    [
        ("InsufficientInstanceCapacity", TemporaryOrderError, Outcome.NO_CAPACITY),
        ("InstanceLimitExceeded", PermanentOrderError, Outcome.LIMIT),
        ("AuthFailure", PermanentOrderError, Outcome.PERMISSION),
        ("InvalidInstanceID.NotFound", PermanentOrderError, Outcome.NOT_FOUND),
        ("Unavailable", TemporaryOrderError, Outcome.AWAY),
        ("SomethingNew", PermanentOrderError, Outcome.FAILED),
    ],
)
def test_error_codes_have_names(code: str, kind: type[Exception], outcome: Outcome) -> None:
    """What may be otherwise later is temporary; what is not known has failed, with the service's words."""
    error = error_of("RunInstances", code, "the\nwords")
    assert isinstance(error, kind)
    assert str(error) == f"{outcome}: EC2 RunInstances: {code}: the words"


def activity(status: str, message: str, minute: int) -> dict:
    return {"StatusCode": status, "StatusMessage": message, "StartTime": AT.replace(minute=minute)}


CAPACITY = (
    "We currently do not have sufficient p5.48xlarge capacity in the Availability Zone you requested (us-east-1a). "
    "Our system will be working on provisioning additional capacity. Launching EC2 instance failed."
)
"""As the Auto Scaling guide quotes it."""


def test_a_groups_failed_launch_is_named() -> None:
    """The newest activity counts; one from before the order says nothing about it, nor one that was followed by success."""
    assert scaling_trouble([activity("Failed", CAPACITY, 5)], AT.timestamp()) == (Outcome.NO_CAPACITY, CAPACITY)
    waiting = [activity("InProgress", "", 6), activity("Failed", CAPACITY, 5)]
    assert scaling_trouble(waiting, AT.timestamp()) == (Outcome.NO_CAPACITY, CAPACITY)
    assert scaling_trouble([activity("Successful", "", 6), *waiting], AT.timestamp()) is None
    assert scaling_trouble([activity("Failed", CAPACITY, 5)], AT.timestamp() + 600) is None
    limit = "You have requested more vCPU capacity than your current vCPU limit of 0 allows"
    assert scaling_trouble([activity("Failed", limit, 5)], 0.0) == (Outcome.LIMIT, limit)
    rights = "You are not authorized to use launch template: lt-0. Launching EC2 instance failed."
    assert scaling_trouble([activity("Failed", rights, 5)], 0.0) == (Outcome.PERMISSION, rights)
