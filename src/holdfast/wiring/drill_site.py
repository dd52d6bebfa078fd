"""`holdfast drill run --on site`: the cluster that `holdfast.toml` describes, as drills take it.

Called by `drill.py`. Reads the settings only; no time passes here.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.drill.site_settings import SiteSettings
from holdfast.errors import UsageError
from holdfast.wiring.settings import find_controller, load_settings


def site_of(config: Path | None) -> SiteSettings:
    """The site of the holdfast.toml that is found, or named by `--config`.

    Raises:
        UsageError: the file does not say which cluster it is, or where its jobs' folders are.
        LinkError, ConfigError, RefusedError: see `config.find_controller`.
    """
    settings = load_settings(config)
    found, site = settings.config, settings.config.drill.site
    where = str(settings.file) if settings.file is not None else "holdfast.toml"
    kind, _, place = found.cluster.partition(":")
    if found.dir and not found.cluster:
        kind, place = "local", str(settings.path(found.dir))
    if kind not in {"local", "slurm", "kubernetes"} or (kind == "local" and not found.dir):
        raise UsageError(
            f'--on site: {where} does not say which cluster it is: write cluster = "slurm:" or "kubernetes:" '
            "and controller = ..., or dir = ... of an embedded one"
        )
    folder = settings.path(site.folder) or (Path(place) / "jobs" if kind == "local" else None)
    if folder is None:
        raise UsageError(f"--on site: {where} has no [drill.site] folder: name one that nodes and this machine share")
    link = find_controller(config=config)
    return SiteSettings(
        config=site,
        scheduler=kind,
        place=place,
        kubeconfig=settings.path(found.kubernetes.kubeconfig),
        cluster=found.kubernetes.cluster,
        folder=folder.absolute(),
        url=link.url,
        token=link.token,
        trust=link.trust,
    )
