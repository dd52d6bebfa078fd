"""Fixtures that several rooms' tests share, and how long an example of a property may take: any time."""

from hypothesis import HealthCheck, settings

from kube_fixture import _module_kube_lab, kube_lab
from postgres_fixture import postgres
from slurm_fixture import _module_lab, netns_lab, slurm_lab

__all__ = ["_module_kube_lab", "_module_lab", "kube_lab", "netns_lab", "postgres", "slurm_lab"]

# On a busy machine an example of a millisecond takes seconds: that is no failure of what is tested.
settings.register_profile("any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-machine")
