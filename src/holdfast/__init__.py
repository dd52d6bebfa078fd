"""Holdfast keeps large training jobs running: from fault to proven progress.

`holdfast.telemetry` and `holdfast.checkpoint` are what a training script imports; `holdfast.client`
talks to a controller. Everything else is reached through the `holdfast` command.
"""

__version__ = "0.1.0"
__all__ = ["__version__"]
