"""deploy/kubernetes and the Helm chart as their own tools install them: kubectl with kustomize, and Helm's own engine.

Soak, since Helm comes as a wheel of 75 MB that holds its engine (`helm-python-sdk`, fetched with pip into the cache) and
kubectl is the machine's. The lab's 1.20 knows PodDisruptionBudget by its older name, which is put in on the way.
"""

from __future__ import annotations

import asyncio
import importlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.lab.kube_lab import KubeLab
from holdfast.lab.settings import cache_folder
from kube_fixture import admin, running_lab

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
CHART = DEPLOY / "helm" / "holdfast"
HELM = "helm-python-sdk==0.2.2"
NAMESPACE = "holdfast"
ROLES = "/apis/rbac.authorization.k8s.io/v1"

pytestmark = [pytest.mark.cluster, pytest.mark.soak, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def helm() -> Iterator[Any]:
    """Helm's engine."""
    folder = cache_folder("helm")
    if not (folder / "helm_python").is_dir():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), HELM]
        done = subprocess.run(pip, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.fail(f"Helm cannot be had: {done.stderr[-300:]}", pytrace=False)
    sys.path.append(str(folder))
    try:
        yield importlib.import_module("helm_python")
    finally:
        sys.path.remove(str(folder))


@pytest.fixture
def lab() -> Iterator[KubeLab]:
    """A control plane with nothing in it."""
    with running_lab(nodes=0, agents=False) as running:
        yield running


def kubectl(*words: str, lab: KubeLab | None = None, given: str = "") -> str:
    """What kubectl printed."""
    program = shutil.which("kubectl")
    if program is None:
        pytest.fail("kubectl is not on PATH: apt-get install kubernetes-client", pytrace=False)
    where = ["--kubeconfig", str(lab.kubeconfig)] if lab is not None else []
    done = subprocess.run([program, *where, *words], input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def older(text: str) -> str:
    return text.replace("apiVersion: policy/v1\n", "apiVersion: policy/v1beta1\n")


def as_objects(*texts: str) -> dict[tuple[str, str], dict[str, Any]]:
    found = [one for text in texts for one in yaml.safe_load_all(text) if one]
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


async def rights(lab: KubeLab) -> dict[str, Any]:
    """Every rule and binding of ours, as the API server has them."""
    async with admin(lab) as api:
        found: dict[str, Any] = {}
        for kind in ("clusterroles", "clusterrolebindings", f"namespaces/{NAMESPACE}/roles"):
            for one in (await api.list_all(f"{ROLES}/{kind}"))[0]:
                if one["metadata"]["name"].startswith("holdfast"):
                    found[f"{kind}/{one['metadata']['name']}"] = one.get("rules") or (one["roleRef"], one["subjects"])
        return found


def wanted_rights() -> dict[str, Any]:
    """The same, as the files have them."""
    plural = {"ClusterRole": "clusterroles", "ClusterRoleBinding": "clusterrolebindings"}
    plural["Role"] = f"namespaces/{NAMESPACE}/roles"
    found = {}
    for (kind, name), one in as_objects((DEPLOY / "kubernetes" / "rbac.yaml").read_text()).items():
        if kind in plural:
            found[f"{plural[kind]}/{name}"] = one.get("rules") or (one["roleRef"], one["subjects"])
    return found


def same(found: Any, wanted: Any) -> bool:
    """The server adds defaults (a subject's API group); it takes nothing away."""
    if isinstance(wanted, dict):
        return all(same(found.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, (list, tuple)):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    return bool(found == wanted)


def test_kubectl_applies_the_tree_and_a_second_time_changes_nothing(lab: KubeLab):
    """Every object is taken by a real API server as it stands, in the namespace, with the rights of the files."""
    made = older(kubectl("kustomize", str(DEPLOY / "kubernetes")))
    words = kubectl("apply", "-f", "-", lab=lab, given=made).splitlines()
    assert len(words) == len(as_objects(made)) == len([word for word in words if word.endswith(" created")])
    again = kubectl("apply", "-f", "-", lab=lab, given=made).splitlines()
    assert [word for word in again if not word.endswith(" unchanged")] == []
    assert same(asyncio.run(rights(lab)), wanted_rights())
    image = as_objects(made)["Deployment", "holdfast-controller"]["spec"]["template"]["spec"]["containers"][0]["image"]
    assert image == "holdfast:0.1.0"


def test_helm_renders_what_kustomize_makes(helm: Any):
    """Its linter finds no error; with the default values chart and tree are the same objects."""
    found = helm.lint(str(CHART))
    assert found["errors"] == []
    assert [one for one in found["messages"] if one["severity"] > 1] == []
    with helm.Chart.load(str(CHART)) as chart:
        made = as_objects(*chart.render({}, name="holdfast", namespace=NAMESPACE).values())
        values = {
            "mode": "act",
            "image": {"repository": "r.example/holdfast", "tag": "9"},
            "controller": {"replicas": 1},
        }
        other = as_objects(*chart.render(values, name="holdfast", namespace="gpu").values())
    tree = as_objects(kubectl("kustomize", str(DEPLOY / "kubernetes")))
    left_out = {"Namespace", "CustomResourceDefinition"}
    for one in [*made.values(), *tree.values()]:
        one["metadata"].pop("namespace", None)  # Helm's own command gives it
    assert made == {key: one for key, one in tree.items() if key[0] not in left_out}
    assert other["Deployment", "holdfast-controller"]["spec"]["replicas"] == 1
    assert 'mode = "act"' in other["ConfigMap", "holdfast"]["data"]["policy.toml"]
    assert {one["namespace"] for one in other["ClusterRoleBinding", "holdfast-controller"]["subjects"]} == {"gpu"}


def test_helm_installs_upgrades_and_uninstalls(helm: Any, lab: KubeLab, tmp_path: Path):
    """On a real API server, with the rights of the tree; nothing but the definition of incidents is left behind."""
    chart = tmp_path / "holdfast"
    shutil.copytree(CHART, chart)
    controller = chart / "templates" / "controller.yaml"
    controller.write_text(older(controller.read_text()))
    about = chart / "Chart.yaml"  # Debian's build calls itself version 0.0.0
    about.write_text("\n".join(line for line in about.read_text().splitlines() if not line.startswith("kubeVersion")))
    kubectl("create", "namespace", NAMESPACE, lab=lab)
    with helm.Config(kubeconfig_path=str(lab.kubeconfig), namespace=NAMESPACE) as config:
        assert config.install(str(chart), "holdfast", {})["status"] == "deployed"
        assert same(asyncio.run(rights(lab)), wanted_rights())
        assert "incidents.holdfast.dev" in kubectl("get", "crd", "-o", "name", lab=lab)
        assert config.upgrade(str(chart), "holdfast", {"mode": "act"})["revision"] == 2
        settings = kubectl("-n", NAMESPACE, "get", "configmap", "holdfast", "-o", "yaml", lab=lab)
        assert 'mode = "act"' in settings
        config.uninstall("holdfast")
    assert asyncio.run(rights(lab)) == {}
