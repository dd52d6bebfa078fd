"""deploy/kubernetes and the Helm chart, as files: what they promise about rights, users and references holds."""

from __future__ import annotations

import asyncio
import runpy
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from holdfast.adapters.kubernetes.objects import KINDS
from holdfast.adapters.policy_files import packaged_presets, read_policy
from holdfast.adapters.probes.config import load_config
from holdfast.api.standing_by import standing_by
from holdfast.cli.main import load
from holdfast.errors import UsageError
from holdfast.os.tls import TlsFiles
from holdfast.wiring.settings import load_settings, tls_files
from holdfast.wiring.turns import holder_name, lease_name

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
CHART = DEPLOY / "helm" / "holdfast"


def objects() -> list[dict[str, Any]]:
    kustomization = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
    return [one for name in kustomization["resources"] for one in yaml.safe_load_all((KUBERNETES / name).read_text())]


def the(kind: str, name: str = "") -> dict[str, Any]:
    return next(one for one in objects() if one["kind"] == kind and name in {"", one["metadata"]["name"]})


def pods() -> dict[str, dict[str, Any]]:
    templates = {
        one["metadata"]["name"]: one["spec"]["template"]
        for one in objects()
        if one["kind"] in {"Deployment", "DaemonSet"}
    }
    return {**templates, "holdfast-check": the("PodTemplate")["template"]}


def test_every_file_is_listed_and_every_object_named_once():
    """Nothing lies beside the kustomization unused."""
    listed = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == sorted(p.name for p in KUBERNETES.glob("*.yaml") if p.name != "kustomization.yaml")
    names = [(one["kind"], one["metadata"]["name"]) for one in objects()]
    assert len(set(names)) == len(names)


def test_pods_are_locked_down():
    """Read-only root everywhere; the controller is nobody's root and has no capability; no token but the ones named."""
    for name, pod in pods().items():
        spec = pod["spec"]
        (container,) = spec["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"], name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys(), name
    spec = pods()["holdfast-controller"]["spec"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not [one for one in spec["volumes"] if "hostPath" in one]
    for account in (one for one in objects() if one["kind"] == "ServiceAccount"):
        assert account["automountServiceAccountToken"] is False
    (token,) = [one for one in pods()["holdfast-agent"]["spec"]["volumes"] if "projected" in one]
    assert token["projected"]["sources"][0]["serviceAccountToken"]["audience"] == "holdfast"
    host = {one["hostPath"]["path"] for one in pods()["holdfast-agent"]["spec"]["volumes"] if "hostPath" in one}
    assert host == {"/dev/kmsg", "/var/log/pods", "/sys", "/var/lib/holdfast-agent"}


def test_rights_are_of_the_kinds_that_the_adapter_knows():
    """No star anywhere; each kind of workload in the adapter's table has its rule; secrets are in none."""
    rules = [rule for one in objects() if one["kind"] in {"ClusterRole", "Role"} for rule in one["rules"]]
    for rule in rules:
        assert "*" not in {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
        assert "secrets" not in rule["resources"]
    granted = {
        (group, kind)
        for rule in the("ClusterRole", "holdfast-controller")["rules"]
        for group in rule["apiGroups"]
        for kind in rule["resources"]
    }
    assert {(kind.group, kind.plural) for kind in KINDS.values()} <= granted


def test_what_refers_to_something_finds_it():
    """Selectors choose their pods, probes and services their ports, bindings their roles, volumes are mounted."""
    service, labels = the("Service"), pods()["holdfast-controller"]["metadata"]["labels"]
    assert service["spec"]["selector"] == {
        **{k: labels[k] for k in ("app.kubernetes.io/name",)},
        "holdfast.dev/role": "active",
    }
    assert labels["holdfast.dev/role"] == "standby"
    for kind in ("Deployment", "DaemonSet"):
        one = the(kind)
        assert one["spec"]["selector"]["matchLabels"].items() <= one["spec"]["template"]["metadata"]["labels"].items()
    for port in service["spec"]["ports"]:
        assert port["protocol"] == "TCP"  # 1.20 refuses a server-side apply without it
    for name, pod in pods().items():
        (container,) = pod["spec"]["containers"]
        assert {one["protocol"] for one in container.get("ports", ())} <= {"TCP"}
        assert {one["name"] for one in container["volumeMounts"]} == {one["name"] for one in pod["spec"]["volumes"]}, (
            name
        )
        ports = {one["name"] for one in container.get("ports", ())}
        for probe in ("livenessProbe", "readinessProbe"):
            assert container.get(probe, {}).get("httpGet", {}).get("port", next(iter(ports), "")) in {*ports, ""}
    accounts = {one["metadata"]["name"] for one in objects() if one["kind"] == "ServiceAccount"}
    roles = {(one["kind"], one["metadata"]["name"]) for one in objects() if one["kind"] in {"Role", "ClusterRole"}}
    for one in objects():
        if one["kind"].endswith("Binding"):
            assert (one["roleRef"]["kind"], one["roleRef"]["name"]) in roles
            assert {subject["name"] for subject in one["subjects"]} <= accounts


def test_commands_and_settings_are_understood(tmp_path: Path):
    """Each container's words are options of its command, and holdfast.toml is read without complaint."""
    for name, pod in pods().items():
        command, *words = pod["spec"]["containers"][0]["args"]
        known = {option for parameter in load(command).params for option in parameter.opts}
        assert {word.partition("=")[0] for word in words} <= known, name
    for file, text in the("ConfigMap")["data"].items():
        (tmp_path / file).write_text(text)
    settings = load_settings(tmp_path / "holdfast.toml")
    assert settings.config.kubernetes.agent_account == "holdfast/holdfast-agent"
    assert settings.path(settings.config.policy) == tmp_path / "policy.toml"


def test_the_overlay_for_hyperpod_eks(tmp_path: Path):
    """HyperPod's prefix and preset for controller and agents; agents see the node's /var/log and its time zone."""
    folder = DEPLOY / "hyperpod-eks"
    overlay = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert (folder / overlay["resources"][0]).resolve() == KUBERNETES
    for name in ("settings.yaml", "agent-settings.yaml"):
        for file, text in yaml.safe_load((folder / name).read_text())["data"].items():
            (tmp_path / file).write_text(text)
    settings = load_settings(tmp_path / "holdfast.toml").config
    assert settings.kubernetes.prefix == "sagemaker.amazonaws.com"
    policies, _ = read_policy(tmp_path / "policy.toml", packaged_presets())
    assert policies.site.node.follow_hint
    assert load_config(tmp_path / "agent.toml").reads_messages
    agent = yaml.safe_load((folder / "agent.yaml").read_text())["spec"]["template"]["spec"]
    mounted = {one["name"]: one["mountPath"] for one in agent["containers"][0]["volumeMounts"]}
    places = {mounted[one["name"]]: one["hostPath"]["path"] for one in agent["volumes"] if "hostPath" in one}
    assert places == {"/var/log": "/var/log", "/etc/localtime": "/etc/localtime"}


def test_the_chart_is_made_from_these_files():
    """`python deploy/helm/make_chart.py` writes the templates; with the default values they say the same."""
    made = runpy.run_path(str(DEPLOY / "helm" / "make_chart.py"))
    for name, text in made["templates"]().items():
        assert (CHART / "templates" / name).read_text() == text, "run deploy/helm/make_chart.py"
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    rendered = [
        one
        for text in made["templates"]().values()
        for one in yaml.safe_load_all(made["filled"](text, values, "holdfast"))
        if one is not None
    ]
    expected = [one for one in objects() if one["kind"] not in {"Namespace", "CustomResourceDefinition"}]
    for one in expected:
        if one["kind"] in {"Deployment", "DaemonSet", "PodTemplate"}:
            spec = one["spec"]["template"]["spec"] if "spec" in one else one["template"]["spec"]
            spec["containers"][0]["image"] = f"{values['image']['repository']}:{values['image']['tag']}"
    assert sorted(map(str, rendered)) == sorted(map(str, expected))
    assert (CHART / "crds" / "incident-crd.yaml").read_text() == (KUBERNETES / "incident-crd.yaml").read_text()
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["apiVersion"] == "v2"


def rendered(**tls: str) -> dict[str, dict[str, Any]]:
    """The chart's objects with these values under `tls`, by kind and name."""
    made = runpy.run_path(str(DEPLOY / "helm" / "make_chart.py"))
    values = {**yaml.safe_load((CHART / "values.yaml").read_text()), "tls": {"secret": "", "ca": "", **tls}}
    texts = [made["filled"](text, values, "prod") for text in made["templates"]().values()]
    found = [one for text in texts for one in yaml.safe_load_all(text) if one is not None]
    return {f"{one['kind']} {one['metadata']['name']}": one for one in found}


def mounts_of(pod: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Mounted folder -> volume; every volume is mounted."""
    volumes = {one["name"]: one for one in pod["volumes"]}
    mounted = {one["mountPath"]: volumes.pop(one["name"]) for one in pod["containers"][0]["volumeMounts"]}
    assert not volumes
    return mounted


def test_the_chart_serves_tls_with_a_secret_and_agents_check_it(tmp_path: Path):
    """`tls.secret` is mounted, served with and probed over HTTPS; agents call https by the authority of `tls.ca`, and may
    send no token in the clear any more."""
    found = rendered(secret="our-tls", ca="our-ca")
    controller = found["Deployment holdfast-controller"]["spec"]["template"]["spec"]
    assert mounts_of(controller)["/etc/holdfast-tls"]["secret"] == {"secretName": "our-tls", "defaultMode": 0o440}
    for probe in ("readinessProbe", "livenessProbe"):
        assert controller["containers"][0][probe]["httpGet"] == {"path": "/livez", "port": "api", "scheme": "HTTPS"}
    for file, text in found["ConfigMap holdfast"]["data"].items():
        (tmp_path / file).write_text(text)
    served = tls_files(load_settings(tmp_path / "holdfast.toml"))
    assert served == TlsFiles(Path("/etc/holdfast-tls/tls.crt"), Path("/etc/holdfast-tls/tls.key"))
    agent = found["DaemonSet holdfast-agent"]["spec"]["template"]["spec"]
    words = agent["containers"][0]["args"]
    assert {"--controller=https://holdfast.prod.svc:8470", "--ca-file=/var/run/secrets/holdfast/ca.crt"} <= {*words}
    assert {word.partition("=")[0] for word in words[1:]} <= {o for one in load("agent").params for o in one.opts}
    assert "HOLDFAST_PLAIN_HTTP" not in {one["name"] for one in agent["containers"][0]["env"]}
    sources = mounts_of(agent)["/var/run/secrets/holdfast"]["projected"]["sources"]
    assert sources[1] == {"configMap": {"name": "our-ca", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}
    assert sources[0]["serviceAccountToken"]["audience"] == "holdfast"


def test_the_chart_with_a_certificate_of_a_known_authority():
    """Without `tls.ca` agents go by the authorities of their image; they call https all the same."""
    agent = rendered(secret="our-tls")["DaemonSet holdfast-agent"]["spec"]["template"]["spec"]
    words = agent["containers"][0]["args"]
    assert "--controller=https://holdfast.prod.svc:8470" in words
    assert not [word for word in words if word.startswith("--ca-file")]
    assert len(mounts_of(agent)["/var/run/secrets/holdfast"]["projected"]["sources"]) == 1


def test_a_standby_is_alive_and_says_that_it_does_not_lead(unused_port: int):
    """Probes find it well; whoever else asks is told to come back."""

    async def work() -> None:
        url = f"http://127.0.0.1:{unused_port}"
        async with standing_by("127.0.0.1", unused_port), httpx.AsyncClient(trust_env=False) as client:
            alive, ingest = await client.get(f"{url}/livez"), await client.post(f"{url}/v1/ingest", content=b"x" * 9999)
            assert (alive.status_code, alive.json()["standby"]) == (200, True)
            assert (ingest.status_code, ingest.headers["retry-after"]) == (503, "2")
            async with standing_by("127.0.0.1", unused_port):
                pass  # the port is taken: nothing is broken by it
        async with httpx.AsyncClient(trust_env=False) as client:
            with pytest.raises(httpx.ConnectError):
                await client.get(f"{url}/livez")

    asyncio.run(work())


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_names_in_leases(tmp_path: Path):
    """On a journal that machines share the name holds the machine's boot, too; --elect names a lease or is refused."""
    assert holder_name(tmp_path, "sqlite:///x").endswith(str(tmp_path))
    assert holder_name(tmp_path, "postgresql://h/db").startswith(holder_name(tmp_path, "sqlite:///x") + " (")
    assert lease_name("kubernetes:holdfast/controller") == ("holdfast", "controller")
    for bad in ("kubernetes", "kubernetes:x", "etcd:a/b", "kubernetes:a/b/c", "kubernetes:/b"):
        with pytest.raises(UsageError, match="NAMESPACE/NAME"):
            lease_name(bad)
