"""Telling people. `FileNotifier` is what the controller always has; services beyond this machine stand beside it."""

from __future__ import annotations

from holdfast.adapters.notify.file import FileNotifier

__all__ = ["FileNotifier"]
