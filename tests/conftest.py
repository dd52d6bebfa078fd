"""Fixtures that several rooms' tests share, how long an example of a property may take (any time), and what runs beside what."""

import re

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from kube_fixture import _module_kube_lab, kube_lab
from postgres_fixture import postgres
from slurm_fixture import _module_lab, netns_lab, slurm_lab

__all__ = ["_module_kube_lab", "_module_lab", "kube_lab", "netns_lab", "postgres", "slurm_lab"]

# On a busy machine an example of a millisecond takes seconds: that is no failure of what is tested.
settings.register_profile("any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-machine")

STARTS_SLURM = re.compile(r"\bslurm_(lab|fixture|world|keeper)\b")


class OneSlurm(LoadFileScheduling):
    """File by file, and never two Slurms at once: both would number their jobs from 1, in the same /dev/shm."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return "slurm" if file in self.slurm else file

    def schedule(self) -> None:
        files = {nodeid.partition("::")[0] for nodeid in next(iter(self.registered_collections.values()))}
        texts = {file: (self.config.rootpath / file).read_text(encoding="utf-8") for file in files}
        self.slurm = {file for file, text in texts.items() if STARTS_SLURM.search(text)}
        super().schedule()


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> OneSlurm | None:
    """`--dist loadfile` is this one."""
    return OneSlurm(config, log) if config.getvalue("dist") == "loadfile" else None
