"""Launchers in pods find out on which nodes the others are, through the folder that they share."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from holdfast.errors import LinkError, UsageError
from holdfast.launch.place import read_place
from holdfast.launch.pods import SERVICE, peers, reporting


def pod(rank: int, count: int = 2) -> dict[str, str]:
    return {"PET_NNODES": str(count), "PET_NODE_RANK": str(rank)}


def test_pods_that_come_at_different_times_learn_the_same_nodes(tmp_path: Path):
    """The first waits for the last; both end with all nodes in order of rank."""
    found: dict[int, object] = {}

    def come(rank: int) -> None:
        found[rank] = peers(pod(rank), tmp_path, node=f"n{rank}", restart=0, limit_s=30.0)

    first = threading.Thread(target=come, args=(1,))
    first.start()
    come(0)
    first.join(30.0)
    assert found == {0: (0, ("n0", "n1")), 1: (1, ("n0", "n1"))}


def test_a_restart_has_a_meeting_place_of_its_own(tmp_path: Path):
    """Names of the run before, on other nodes, are not believed."""
    (tmp_path / "pods/0").mkdir(parents=True)
    (tmp_path / "pods/0/1").write_text("old")
    with pytest.raises(LinkError, match="rank 1 have not come"):
        peers(pod(0), tmp_path, node="n0", restart=1, limit_s=0.0)


def test_one_pod_needs_nobody(tmp_path: Path):
    """Without a count, with one pod, or without a rank there is nothing to wait for."""
    for environ in ({}, pod(0, 1), {"PET_NNODES": "2"}):
        assert peers(environ, tmp_path, node="n0", restart=0, limit_s=0.0) is None


def test_ranks_and_nodes_that_cannot_be_are_refused(tmp_path: Path):
    """A rank beyond the count, and two pods on one node, are said and not guessed around."""
    with pytest.raises(UsageError, match="node rank is 2"):
        peers(pod(2), tmp_path, node="n0", restart=0)
    (tmp_path / "pods/0").mkdir(parents=True)
    (tmp_path / "pods/0/1").write_text("n0")
    with pytest.raises(UsageError, match="share a node"):
        peers(pod(0), tmp_path, node="n0", restart=0)


def test_a_pods_place_is_read_from_both(tmp_path: Path):
    """Job and node by the pod's own variables, rank by the operator's, the others by the folder."""
    (tmp_path / "pods/3").mkdir(parents=True)
    (tmp_path / "pods/3/0").write_text("n0")
    environ = {
        **pod(1),
        "HOLDFAST_JOB_ID": "default.pytorchjob.llama",
        "HOLDFAST_JOB_DIR": str(tmp_path),
        "HOLDFAST_NODE": "n1",
        "HOLDFAST_NODE_ADDRESS": "10.0.0.7",
        "HOLDFAST_RESTART_COUNT": "3",
    }
    place = read_place(environ, job_dir="", nnodes=0)
    assert (place.nodes, place.node_rank, place.address, place.restart_count) == (("n0", "n1"), 1, "10.0.0.7", 3)


def test_a_token_that_is_mounted_is_the_way_to_the_controller(tmp_path: Path):
    """With it alone the Service of deploy/kubernetes is called; what the manifest names holds; without it nothing is."""
    token = tmp_path / "token"
    assert reporting({"A": "b"}, token) == {"A": "b"}
    token.write_text("x")
    assert reporting({}, token) == {"HOLDFAST_TOKEN_FILE": str(token), "HOLDFAST_CONTROLLER": SERVICE}
    for named in ({"HOLDFAST_CONTROLLER": "http://c:1"}, {"HOLDFAST_CONTROLLER_FILE": "/f"}):
        assert reporting(named, token) == {**named, "HOLDFAST_TOKEN_FILE": str(token)}
    assert reporting({"HOLDFAST_TOKEN_FILE": "/own"}, token) == {"HOLDFAST_TOKEN_FILE": "/own"}
    ca_file = token.with_name("ca.crt")
    ca_file.write_text("c")
    https = {"HOLDFAST_CONTROLLER": SERVICE.replace("http:", "https:"), "HOLDFAST_CA_FILE": str(ca_file)}
    assert reporting({}, token) == {"HOLDFAST_TOKEN_FILE": str(token), **https}
