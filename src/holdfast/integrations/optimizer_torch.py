"""Counts training steps by the optimizer, for programs that tell nothing themselves.

Used by the hooks for torchrun and Accelerate. torch calls a global hook after every `optimizer.step()`; the first
optimizer that steps is taken for the one that counts (a GAN has two). Between two calls lies one step: data, forward,
backward, update. No clock here; times are taken by the telemetry.
"""

from __future__ import annotations

from typing import Any
from weakref import ref

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from holdfast import telemetry

__all__ = ["StepCounter"]


class StepCounter:
    """Begin to count with `install`.

    Args:
        first_step: steps that were completed before this process began; None: what the optimizer's own state says
            (Adam and its kin keep it), else 0.
    """

    def __init__(self, first_step: int | None = None) -> None:
        self.step: int | None = first_step
        """Completed steps; None before the first one when nobody has said."""
        self._is_counted = False
        self._main: ref[torch.optim.Optimizer] | None = None
        self._handle: Any = None

    def install(self) -> None:
        """Follow every optimizer of this process from now on."""
        if self._handle is None:
            telemetry.set_phase("init")  # opens the slot: the first step's end must find one
            self._handle = register_optimizer_step_post_hook(self._stepped)

    def remove(self) -> None:
        """Follow no longer."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _stepped(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        if self._main is None:
            self._main = ref(optimizer)
        elif self._main() is not optimizer:
            return
        if not self._is_counted:
            self._is_counted = True
            own = _own_step(optimizer)
            self.step = own if own is not None else (self.step or 0) + 1
        else:
            self.step = (self.step or 0) + 1
        telemetry.step_end(self.step)
        telemetry.step_begin(self.step + 1)


def _own_step(optimizer: torch.optim.Optimizer) -> int | None:
    """Steps that the optimizer remembers, after the newest one; never waits for a device."""
    for state in optimizer.state.values():
        step = state.get("step") if isinstance(state, dict) else None
        if isinstance(step, torch.Tensor):
            return int(step.item()) if step.device.type == "cpu" else None
        return int(step) if isinstance(step, int | float) else None
    return None
