"""Every port in memory, shipped for users' tests and for simulation: no file, no process, no thread.

`MemoryJournal` keeps the journal's whole contract (lease, fencing, read models); several may share one `MemoryStore`,
as a standby shares a database. `MemoryOrchestrator` is a scripted world that counts the effects of orders. With
`clock.run_virtual` a test of hours runs in milliseconds. Times come from the calls and from the clock handed in.
"""

from __future__ import annotations

from holdfast.adapters.memory.journal import MemoryJournal, MemoryStore
from holdfast.adapters.memory.world import MemoryNotifier, MemoryOrchestrator, MemoryRepair

__all__ = ["MemoryJournal", "MemoryNotifier", "MemoryOrchestrator", "MemoryRepair", "MemoryStore"]
