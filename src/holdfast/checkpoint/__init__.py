"""Checkpoints that can be trusted: asynchronous, atomic, verified, mirrored, fenced.

A training script uses `Checkpointer`; commands and the engine use `scan` and `verify`. Importing this
package is cheap: torch is imported when `Checkpointer` is first touched, and never for the rest.

    from holdfast.checkpoint import Checkpointer

    checkpointer = Checkpointer("ckpt", every_steps=100)
    step = checkpointer.restore(state)          # 0 when there is none
    ...
    if checkpointer.due(step):
        checkpointer.save(step, state)
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.checkpoint.checkpointer_torch import Checkpointer
    from holdfast.checkpoint.errors import EX_RESTART, CheckpointError, FencedError, RestoreError, SaveError
    from holdfast.checkpoint.fence import Fence
    from holdfast.checkpoint.folder_repair import Repair, repair
    from holdfast.checkpoint.manifest import Manifest, Problem, Verdict
    from holdfast.checkpoint.state_torch import not_finite
    from holdfast.checkpoint.store import CheckpointInfo, CheckpointStore, scan, verify

__all__ = [
    "EX_RESTART",
    "CheckpointError",
    "CheckpointInfo",
    "CheckpointStore",
    "Checkpointer",
    "Fence",
    "FencedError",
    "Manifest",
    "Problem",
    "Repair",
    "RestoreError",
    "SaveError",
    "Verdict",
    "not_finite",
    "repair",
    "scan",
    "verify",
]

_HOME = {
    "Checkpointer": "checkpointer_torch",
    "EX_RESTART": "errors",
    "not_finite": "state_torch",
    "CheckpointError": "errors",
    "FencedError": "errors",
    "RestoreError": "errors",
    "SaveError": "errors",
    "Fence": "fence",
    "Manifest": "manifest",
    "Problem": "manifest",
    "Verdict": "manifest",
    "Repair": "folder_repair",
    "repair": "folder_repair",
    "CheckpointInfo": "store",
    "CheckpointStore": "store",
    "scan": "store",
    "verify": "store",
}


def __getattr__(name: str) -> Any:
    """Import the module that a public name lives in when it is first asked for (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
