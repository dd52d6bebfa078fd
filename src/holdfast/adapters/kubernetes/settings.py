"""`[kubernetes]` of holdfast.toml. Read by `wiring/settings.py`; the adapter takes it as it is."""

from __future__ import annotations

from msgspec import Struct


class KubernetesConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[kubernetes]`: how this site's Kubernetes is reached, and who repairs its nodes."""

    kubeconfig: str = ""
    """File; default: KUBECONFIG, `~/.kube/config`, or inside a pod its service account."""
    cluster: str = ""
    """The cluster's name in job keys and reports; default: the kubeconfig's."""
    prefix: str = "holdfast.dev"
    """Of the nodes' health labels, taint and annotations; `sagemaker.amazonaws.com` for HyperPod's own."""
    reboot_program: tuple[str, ...] = ()
    """Reboots a node; run with the node's name as last word."""
    replace_program: tuple[str, ...] = ()
    """Puts another machine in a node's place; without it a node's Cluster API Machine is deleted, where it has one."""
    agent_account: str = ""
    """NAMESPACE/NAME of the ServiceAccount by whose tokens agents log in; without it they need tokens of the book."""
    check_template: str = ""
    """NAMESPACE/NAME of the PodTemplate that checks a repaired node; without it the node's agent does."""
    pod_log_s: float = 3.0
    """A failed job's end waits so long for the logs of its failed pods to be read; 0: they are not."""
    mirror_incidents: bool = False
    """Show incidents as objects too (`kubectl get incidents`); needs the CRD of deploy/kubernetes."""
    repair_by_label: bool = False
    """Somebody outside repairs what the health label asks for (HyperPod does): mark and wait."""
    repair_limit_s: float = 3600.0
    evict_s: float = 300.0
    """How long pods on a node, with their budgets and grace periods, may keep its repair waiting."""
