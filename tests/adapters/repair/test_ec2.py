"""Nodes on EC2, against moto as a real service on this machine: boto3's own requests over HTTP, nothing patched."""

from __future__ import annotations

import asyncio
import logging
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs

import boto3
import pytest
from moto.server import ThreadedMotoServer

from holdfast.adapters.repair.ec2 import ORDER_TAG, REPLACES_TAG, Ec2Repair
from holdfast.adapters.repair.settings import Ec2Config, Replacing
from holdfast.errors import OrderError, PermanentOrderError, TemporaryOrderError
from holdfast.model.orders import AnyOrder, RebootNode, ReplaceNode, ResetGpu

REGION = "us-east-1"


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    """EC2 and Auto Scaling on a free port."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")  # hundreds, of which none is needed
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
        server.stop()


@pytest.fixture
def aws(service: str, monkeypatch: pytest.MonkeyPatch) -> Aws:
    """A fresh account."""
    for name, value in (("AWS_ACCESS_KEY_ID", "testing"), ("AWS_SECRET_ACCESS_KEY", "testing")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    urllib.request.urlopen(urllib.request.Request(f"{service}/moto-api/reset", method="POST"), timeout=30).close()
    return Aws(service)


class Aws:
    """What the tests look at and set up, by a client of their own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.ec2 = boto3.client("ec2", region_name=REGION, endpoint_url=url)
        self.groups = boto3.client("autoscaling", region_name=REGION, endpoint_url=url)
        self.image = "ami-0abcdef1234567890"

    def instance(self, **tags: str) -> str:
        form = [{"ResourceType": "instance", "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}]
        answer = self.ec2.run_instances(
            ImageId=self.image,
            MinCount=1,
            MaxCount=1,
            InstanceType="p5.48xlarge",
            TagSpecifications=form if tags else [],
        )
        return answer["Instances"][0]["InstanceId"]

    def look(self, instance: str) -> dict:
        return self.ec2.describe_instances(InstanceIds=[instance])["Reservations"][0]["Instances"][0]

    def state(self, instance: str) -> str:
        return self.look(instance)["State"]["Name"]

    def tags(self, instance: str) -> dict[str, str]:
        return {tag["Key"]: tag["Value"] for tag in self.look(instance).get("Tags", [])}

    def running(self) -> list[str]:
        pages = self.ec2.describe_instances(Filters=[{"Name": "instance-state-name", "Values": ["pending", "running"]}])
        return sorted(one["InstanceId"] for page in pages["Reservations"] for one in page["Instances"])

    def template(self) -> str:
        data = {"ImageId": self.image, "InstanceType": "p5.48xlarge"}
        made = self.ec2.create_launch_template(LaunchTemplateName="gpu", LaunchTemplateData=data)
        return made["LaunchTemplate"]["LaunchTemplateId"]

    def group(self, size: int) -> list[str]:
        subnet = self.ec2.describe_subnets()["Subnets"][0]["SubnetId"]
        self.groups.create_auto_scaling_group(
            AutoScalingGroupName="gpus", MinSize=size, MaxSize=size, DesiredCapacity=size, VPCZoneIdentifier=subnet,
            LaunchTemplate={"LaunchTemplateId": self.template()},
        )  # fmt: skip
        found = self.groups.describe_auto_scaling_groups(AutoScalingGroupNames=["gpus"])["AutoScalingGroups"][0]
        return sorted(one["InstanceId"] for one in found["Instances"])

    def dns(self, instance: str) -> str:
        return self.look(instance)["PrivateDnsName"]

    def repair(self, **config: object) -> Ec2Repair:
        usual = {"region": REGION, "endpoint": self.url, "poll_s": 0.05, "wait_s": 30.0}
        return Ec2Repair(Ec2Config(**usual | config))


def execute(doer: Ec2Repair, *orders: AnyOrder) -> list[str]:
    async def body() -> list[str]:
        return list(await asyncio.gather(*(doer.execute(order) for order in orders)))

    return asyncio.run(body())


def replace(node: str, order: str = "o1", instance_id: str = "") -> ReplaceNode:
    return ReplaceNode(id=order, cause=1, node=node, instance_id=instance_id)


def next_second() -> None:
    """EC2 tells launches by whole seconds; in life an instance is older than its trouble."""
    time.sleep(1.05 - time.time() % 1)


def test_a_reboot_finds_the_node_by_its_private_name_and_is_asked_for_once(aws: Aws) -> None:
    """The short name that Slurm uses leads to it; the same order again, by another controller, asks for nothing."""
    instance = aws.instance()
    order = RebootNode(id="o7", cause=1, node=aws.dns(instance).partition(".")[0])
    first, second = aws.repair(), aws.repair()
    assert execute(first, order) == [f"{instance} reboots"]
    assert aws.tags(instance)[ORDER_TAG] == "o7"
    assert execute(second, order) == [f"{instance} was told to reboot already"]
    assert (first.calls["RebootInstances"], second.calls.get("RebootInstances", 0)) == (1, 0)


def test_reboots_that_come_together_are_one_call(aws: Aws) -> None:
    """A rack's worth of orders does not run into the service's request limit."""
    names = [aws.dns(aws.instance()) for _ in range(12)]
    doer = aws.repair()
    execute(doer, *(RebootNode(id=f"o{number}", cause=1, node=name) for number, name in enumerate(names)))
    assert (doer.calls["DescribeInstances"], doer.calls["RebootInstances"]) == (1, 1)


def test_a_group_replaces_what_is_terminated_and_it_is_waited_for(aws: Aws) -> None:
    """The old instance is terminated, the group's new one is found, claimed by a tag and named."""
    old, other = aws.group(2)
    next_second()
    [said] = execute(aws.repair(), replace(aws.dns(old)))
    [new] = set(aws.running()) - {other}
    assert said.startswith(f"{old} was terminated, {new} (")
    assert aws.state(old) == "terminated"
    assert (aws.tags(old)[ORDER_TAG], aws.tags(new)[REPLACES_TAG]) == ("o1", "o1")


def test_several_replacements_of_one_group_take_one_new_instance_each(aws: Aws) -> None:
    """Nobody takes another's; one look at EC2 serves all who wait."""
    before = aws.group(6)
    next_second()
    doer = aws.repair(poll_s=0.3)
    said = execute(doer, *(replace(aws.dns(old), f"o{number}") for number, old in enumerate(before)))
    after = aws.running()
    assert len(after) == 6
    assert not set(after) & set(before)
    assert sorted(aws.tags(new)[REPLACES_TAG] for new in after) == [f"o{number}" for number in range(6)]
    assert sorted(new for new in after if any(new in text for text in said)) == after


def test_a_controller_that_was_killed_in_between_ends_one_instance_only(aws: Aws) -> None:
    """Asked again with the same order it finds its own work by the tags: no second machine is terminated."""
    old, other = aws.group(2)
    next_second()
    order = replace(aws.dns(old))
    [first] = execute(aws.repair(), order)
    [second] = execute(aws.repair(), order)
    assert second == first
    assert other in aws.running()
    assert len(aws.running()) == 2


def test_killed_between_termination_and_claim_the_new_instance_is_still_found(aws: Aws) -> None:
    """The tag on the old one and its end were all that had happened."""
    old, other = aws.group(2)
    next_second()
    name = aws.dns(old)
    aws.ec2.create_tags(Resources=[old], Tags=[{"Key": ORDER_TAG, "Value": "o1"}])
    aws.ec2.terminate_instances(InstanceIds=[old])
    [new] = set(aws.running()) - {other}
    doer = aws.repair()
    [said] = execute(doer, replace(name))
    assert f"{new} (" in said
    assert "TerminateInstances" not in doer.calls


def test_launching_from_a_template_keeps_the_nodes_tags(aws: Aws) -> None:
    """`replace = "launch"`: name and cluster go over to the new one, which the next order finds by the same name."""
    old = aws.instance(Name="node07", cluster="train")
    other = aws.instance(Name="node07", cluster="test")
    next_second()
    config = {
        "find": "tag:Name", "filters": {"tag:cluster": ("train",)}, "replace": Replacing.LAUNCH,
        "launch_template": aws.template(),
    }  # fmt: skip
    [said] = execute(aws.repair(**config), replace("node07"))
    assert execute(aws.repair(**config), replace("node07")) == [said]
    [new] = set(aws.running()) - {other}
    assert aws.state(old) == "terminated"
    assert {key: aws.tags(new)[key] for key in ("Name", "cluster")} == {"Name": "node07", "cluster": "train"}
    next_second()
    [again] = execute(aws.repair(**config), replace("node07", "o2"))
    assert again.startswith(f"{new} was terminated")
    assert len(aws.running()) == 2


def test_a_machine_that_was_swapped_already_is_left_alone(aws: Aws) -> None:
    """An order that names a former instance ends nobody; a reboot of one is refused."""
    new = aws.instance(Name="node07")
    doer = aws.repair(find="tag:Name")
    former = "i-0123456789abcdef0"
    assert execute(doer, replace("node07", instance_id=former)) == [f"node07 is another machine already ({new})"]
    with pytest.raises(PermanentOrderError, match="another machine now"):
        execute(doer, RebootNode(id="o2", cause=1, node="node07", instance_id=f"slurm:{former}/0"))
    assert aws.state(new) == "running"


def test_a_machine_that_aws_ended_by_itself_is_waited_for(aws: Aws) -> None:
    """Retired or reclaimed: there is nothing to terminate, its replacement is found all the same."""
    old, other = aws.group(2)
    next_second()
    name = aws.dns(old)
    aws.ec2.terminate_instances(InstanceIds=[old])
    [new] = set(aws.running()) - {other}
    assert f"{new} (" in execute(aws.repair(), replace(name, instance_id=old))[0]


def test_a_name_of_several_or_no_instances_is_refused(aws: Aws) -> None:
    """Never guessed: the sentence names them, and nothing is touched."""
    both = sorted([aws.instance(Name="node07"), aws.instance(Name="node07")])
    doer = aws.repair(find="tag:Name")
    with pytest.raises(PermanentOrderError, match="refused: node07 leads to 2 instances") as caught:
        execute(doer, replace("node07"))
    assert all(one in str(caught.value) for one in both)
    with pytest.raises(PermanentOrderError, match="no such machine: EC2 has no live instance for node08"):
        execute(doer, replace("node08"))
    assert execute(aws.repair(find="instance-id"), RebootNode(id="o", cause=1, node=both[0])) == [f"{both[0]} reboots"]
    assert aws.running() == both


def test_a_replacement_that_never_comes_is_named_as_timed_out(aws: Aws) -> None:
    """Nobody launches one: after `wait_s` a person reads that."""
    old = aws.instance(Name="node07")
    doer = aws.repair(find="tag:Name", wait_s=0.4)
    with pytest.raises(PermanentOrderError, match=f"timed out: nothing took the place of {old} within 0.4 s"):
        execute(doer, replace("node07"))


def test_a_service_that_protects_an_instance_is_obeyed(aws: Aws) -> None:
    """Termination protection is somebody's word: refused, the instance lives."""
    old = aws.instance(Name="node07")
    aws.ec2.modify_instance_attribute(InstanceId=old, DisableApiTermination={"Value": True})
    with pytest.raises(PermanentOrderError, match="refused: EC2 TerminateInstances: OperationNotPermitted"):
        execute(aws.repair(find="tag:Name"), replace("node07"))
    assert aws.state(old) == "running"


def test_missing_rights_are_named(aws: Aws, service: str) -> None:
    """moto with its access control on: an unknown key may do nothing."""

    def allow(requests: str) -> None:
        plain = {"Content-Type": "text/plain"}
        url = f"{service}/moto-api/reset-auth"
        form = urllib.request.Request(url, data=requests.encode(), headers=plain, method="POST")
        urllib.request.urlopen(form, timeout=30).close()

    allow("0")
    try:
        with pytest.raises(PermanentOrderError, match="permission denied: EC2 DescribeInstances"):
            execute(aws.repair(), RebootNode(id="o", cause=1, node="ip-10-0-0-1"))
    finally:
        allow("inf")


def test_a_service_that_is_away_is_worth_another_try(aws: Aws) -> None:
    """Nobody listens there: temporary, named."""
    doer = aws.repair(endpoint="http://127.0.0.1:9")
    doer._settings = doer._settings.merge(type(doer._settings)(retries={"max_attempts": 1, "mode": "standard"}))
    with pytest.raises(TemporaryOrderError, match="not reachable: EC2 DescribeInstances"):
        execute(doer, RebootNode(id="o", cause=1, node="ip-10-0-0-1"))


def test_what_ec2_does_not_do_is_left_to_others(aws: Aws) -> None:
    """GPU resets; and whatever is switched off."""
    doer = aws.repair(reboot=False, replace=Replacing.OFF)
    orders = (ResetGpu(id="o", cause=1, node="n"), RebootNode(id="o", cause=1, node="n"), replace("n"))
    assert [doer.can(order) for order in orders] == [False, False, False]
    assert [aws.repair().can(order) for order in orders] == [False, True, True]


ERROR = """<?xml version="1.0" encoding="UTF-8"?>
<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors><RequestID>ea966190</RequestID></Response>"""
"""The form of an EC2 error document, as the EC2 API Reference gives it."""


@pytest.mark.parametrize(
    ("code", "message", "kind", "words"),
    [
        (
            "InsufficientInstanceCapacity",
            "We currently do not have sufficient p5.48xlarge capacity in the Availability Zone you requested",
            TemporaryOrderError,
            "no capacity: EC2 RunInstances: InsufficientInstanceCapacity: We currently do not have",
        ),
        (
            "InvalidLaunchTemplateId.NotFound",
            "The specified launch template, with template ID lt-0, does not exist.",
            PermanentOrderError,
            "failed: EC2 RunInstances: InvalidLaunchTemplateId.NotFound",
        ),
        (
            "VcpuLimitExceeded",
            "You have requested more vCPU capacity than your current vCPU limit of 192",
            PermanentOrderError,
            "service limit reached",
        ),
        (
            "UnauthorizedOperation",
            "You are not authorized to perform this operation.",
            PermanentOrderError,
            "permission denied",
        ),
        ("RequestLimitExceeded", "Request limit exceeded.", TemporaryOrderError, "asked too fast"),
    ],
)
def test_the_services_own_refusals_are_named(
    aws: Aws, code: str, message: str, kind: type[OrderError], words: str
) -> None:
    """Errors that moto cannot be made to give, in EC2's own document, through boto3's own parser."""
    aws.instance(Name="node07")

    class Refusing(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if parse_qs(body.decode())["Action"] != ["RunInstances"]:
                request = urllib.request.Request(aws.url, data=body, headers=dict(self.headers))
                with urllib.request.urlopen(request, timeout=30) as passed:
                    answer, status = passed.read(), 200
            else:
                answer, status = ERROR.format(code=code, message=message).encode(), 400
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        doer = aws.repair(find="tag:Name", endpoint=url, replace=Replacing.LAUNCH, launch_template="gpu")
        doer._settings = doer._settings.merge(type(doer._settings)(retries={"max_attempts": 1, "mode": "standard"}))
        with pytest.raises(kind, match=words):
            execute(doer, replace("node07"))
    finally:
        server.shutdown()
        server.server_close()
