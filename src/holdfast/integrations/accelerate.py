"""Accelerate: `watch(accelerator)` tells steps and durable checkpoints.

Called once by the script, on every rank, after `Accelerator()`. Steps are counted by the optimizer, see
`optimizer_torch`; saves are seen at `accelerator.save_state`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accelerate import Accelerator

from holdfast import telemetry
from holdfast.integrations.durable import report_saved
from holdfast.integrations.optimizer_torch import StepCounter

__all__ = ["watch"]


def watch(accelerator: Accelerator, *, first_step: int | None = None) -> StepCounter:
    """Tell Holdfast what this accelerator does.

    Args:
        accelerator: the script's own.
        first_step: completed steps when it resumes; only an optimizer that keeps no count of its own (SGD) needs it.

    Returns:
        The counter, whose `step` is the number of completed steps.
    """
    counter = StepCounter(first_step)
    counter.install()
    save: Callable[..., Any] = accelerator.save_state
    load: Callable[..., Any] = accelerator.load_state

    def save_state(*args: Any, **kwargs: Any) -> Any:
        with telemetry.phase("checkpoint"):
            path = save(*args, **kwargs)
            accelerator.wait_for_everyone()
        if accelerator.is_main_process and counter.step is not None:
            report_saved(path, counter.step)
        return path

    def load_state(*args: Any, **kwargs: Any) -> Any:
        with telemetry.phase("load"):
            return load(*args, **kwargs)

    accelerator.save_state = save_state
    accelerator.load_state = load_state
    return counter
