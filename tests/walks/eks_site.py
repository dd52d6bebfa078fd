"""A site as HyperPod on EKS has it, for its walk: a real control plane, agents, `holdfast controller`, and kubectl.

with eks_site() as site:
    site.kubectl("label", "node", "node01", "sagemaker.amazonaws.com/node-health-status=UnschedulablePendingReboot")

What is emulated: the nodes' kubelets run pods as processes of this machine, and the programs that reboot and replace
ask the lab where a site would ask its cloud. The controller has the preset `hyperpod-eks` and HyperPod's label prefix.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.adapters.local import processes
from holdfast.lab.kube_lab import KubeLab
from holdfast.lab.wire import write_program
from kube_fixture import running_lab

PREFIX = "sagemaker.amazonaws.com"
HEALTH = f"{PREFIX}/node-health-status"
DEEP = f"{PREFIX}/deep-health-check-status"
LIMIT_S = 120.0
POLICY = 'preset = "hyperpod-eks"\n[waits]\nsettle_s = 0.05\n[brake]\nmax_nodes = 20\nmax_percent = 100\n'


class Site:
    """See the module; all methods block, with a deadline."""

    def __init__(self, lab: KubeLab) -> None:
        self.lab = lab
        self.folder = lab.folder
        found = shutil.which("kubectl")
        if found is None:
            pytest.fail("kubectl is not on PATH: apt-get install kubernetes-client", pytrace=False)
        self._kubectl = [found, "--kubeconfig", str(lab.kubeconfig)]
        self._controller: subprocess.Popen[bytes] | None = None

    # --- the controller ---

    def start(self) -> None:
        """Start the controller as an administrator would; return when every node is labelled as well."""
        programs = {verb: self._program(verb) for verb in ("reboot", "replace")}
        lines = ["[kubernetes]", f"kubeconfig = {json.dumps(str(self.lab.kubeconfig))}", f'prefix = "{PREFIX}"']
        lines += [f"{verb}_program = {json.dumps([str(path)])}" for verb, path in programs.items()]
        (self.folder / "holdfast.toml").write_text("\n".join([*lines, 'cluster = "hyperpod"', ""]))
        (self.folder / "policy.toml").write_text(POLICY)
        argv = [sys.executable, "-m", "holdfast.cli.main", "controller", "--dir", str(self.folder)]
        argv += ["--cluster", "kubernetes:", "--config", str(self.folder / "holdfast.toml")]
        argv += ["--policy", str(self.folder / "policy.toml"), "--listen", "127.0.0.1:0"]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "SLURM_"))}
        with (self.folder / "controller.log").open("ab") as log:
            self._controller = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=kept | {processes.CLUSTER_MARK: str(self.folder)},
                start_new_session=True,
            )
        self.until(lambda: all(self.health(node) == "Schedulable" for node in self.nodes()), "all nodes Schedulable")

    def _program(self, verb: str) -> Path:
        path = self.folder / f"{verb}-node"
        write_program(path, self.folder / "cluster.sock", op=verb)
        return path

    def end(self) -> None:
        """End the controller."""
        if self._controller is not None and self._controller.poll() is None:
            self._controller.terminate()
            try:
                self._controller.wait(10)
            except subprocess.TimeoutExpired:
                self._controller.kill()
                self._controller.wait()

    # --- what a user sees ---

    def kubectl(self, *words: str, given: str = "") -> str:
        """What kubectl prints."""
        done = subprocess.run(
            [*self._kubectl, *words], input=given, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def objects(self, *words: str) -> list[dict[str, Any]]:
        """`kubectl get WORDS`, as objects."""
        return list(json.loads(self.kubectl("get", *words, "-o", "json"))["items"])

    def nodes(self) -> dict[str, dict[str, Any]]:
        """Nodes by name."""
        return {one["metadata"]["name"]: one for one in self.objects("nodes")}

    def health(self, node: str) -> str:
        """The node's health label; `gone` while there is no such node."""
        found = self.nodes().get(node)
        return found["metadata"]["labels"].get(HEALTH, "") if found else "gone"

    def pods(self, job: str) -> dict[str, dict[str, Any]]:
        """A PyTorchJob's pods by name, without those that are being deleted."""
        found = self.objects("pods", "-l", f"training.kubeflow.org/job-name={job}")
        return {one["metadata"]["name"]: one for one in found if not one["metadata"].get("deletionTimestamp")}

    def running_on(self, job: str) -> list[str]:
        """The nodes of the job's running pods, in the order of their ranks."""
        pods = self.pods(job).values()
        return [pod["spec"]["nodeName"] for pod in pods if pod["status"].get("phase") == "Running"]

    def says(self, pod: str) -> str:
        """`kubectl logs POD`; empty while it has none."""
        with contextlib.suppress(AssertionError):
            return self.kubectl("logs", pod)
        return ""

    def notices(self) -> str:
        """What people were told."""
        return (self.folder / "controller" / "notices.jsonl").read_text()

    def found(self) -> set[tuple[str, str]]:
        """Node and rule of every Xid that the controller's API tells of."""
        facts = json.loads((self.folder / "controller" / "controller.json").read_text())
        token = (self.folder / "controller" / "token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        answer = httpx.get(f"{facts['url']}/v1/incidents", headers=headers, timeout=10).raise_for_status()
        told = [finding for incident in answer.json() for finding in incident.get("findings", [])]
        return {(one["place"]["node"], one["rule"]) for one in told if "xid" in one["rule"]}

    def until(self, holds: Callable[[], Any], what: str, limit_s: float = LIMIT_S) -> Any:
        """Wait until it is so. Fails with the nodes and the end of the controller's log."""
        deadline = time.monotonic() + limit_s
        while not (found := holds()):
            if time.monotonic() > deadline:
                log = (self.folder / "controller.log").read_text()[-3000:]
                seen = self.kubectl("get", "nodes,pods,pytorchjobs", "-o", "wide", "-L", f"{HEALTH},{DEEP}")
                pytest.fail(f"not within {limit_s:g} s: {what}\n{seen}\n{self.notices()[-3000:]}\n{log}")
            time.sleep(0.1)
        return found

    # --- a node's own files ---

    def give(self, node: str, name: str, text: str) -> None:
        """Put a file into a node's file system and have its agent read its configuration again."""
        path = self.folder / "nodes" / node / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        asyncio.run(self.lab.nodes.do("kill", node, target="agent", signal=signal.SIGHUP))

    def xid(self, node: str, number: int) -> None:
        """The node's kernel tells of an Xid."""
        text = f"NVRM: Xid (PCI:0000:b9:00): {number}, pid=42, name=python, Ch 1"
        asyncio.run(self.lab.nodes.do("kmsg", node, text=text))

    @contextlib.contextmanager
    def watching(self, node: str) -> Iterator[Callable[[], list[str]]]:
        """`kubectl get node NODE -w`: the values of the health label, in order, that were seen so far."""
        out = self.folder / f"watch-{node}.out"
        columns = "HEALTH:.metadata.labels." + HEALTH.replace(".", "\\.")
        argv = [*self._kubectl, "get", "nodes", "--field-selector", f"metadata.name={node}", "-w", "--no-headers"]
        with out.open("wb") as file:
            process = subprocess.Popen([*argv, "-o", f"custom-columns={columns}"], stdout=file, stderr=file)
        try:
            self.until(lambda: out.read_text().strip(), "kubectl watches")
            yield lambda: [value for value, _ in itertools.groupby(out.read_text().split())]
        finally:
            process.kill()
            process.wait()

    def append(self, node: str, *lines: str) -> None:
        """Root appends lines to the node's /var/log/messages."""
        path = self.folder / "nodes" / node / "var/log/messages"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)


@contextlib.contextmanager
def eks_site(nodes: int) -> Iterator[Site]:
    """A site that runs for as long as the block lasts."""
    with running_lab(nodes=nodes, boot_s=1.0) as lab:
        site = Site(lab)
        try:
            site.start()
            yield site
        finally:
            site.end()
