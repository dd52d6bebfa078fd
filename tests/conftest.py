"""Fixtures that several rooms' tests share."""

from kube_fixture import _module_kube_lab, kube_lab
from postgres_fixture import postgres
from slurm_fixture import _module_lab, netns_lab, slurm_lab

__all__ = ["_module_kube_lab", "_module_lab", "kube_lab", "netns_lab", "postgres", "slurm_lab"]
