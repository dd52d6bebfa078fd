"""Checkpoints that other libraries saved: recognised, checked and set aside, without torch.

`recognise` lists them, `verify_foreign` reads one in full, `set_aside` takes a bad one out of the way of its framework.
"""

from holdfast.checkpoint.layouts.frameworks import LAYOUTS, ForeignCheckpoint, recognise, verify_foreign
from holdfast.checkpoint.layouts.set_aside import set_aside

__all__ = ["LAYOUTS", "ForeignCheckpoint", "recognise", "set_aside", "verify_foreign"]
