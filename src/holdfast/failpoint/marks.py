"""A rank's words about a drill, as files in the drill folder: fired (once for ever), or failed.

Called by the hook and the faults. A fired mark is whole, on disk and unique before the fault takes effect: its
time is the fault's time in the reports, and its presence keeps a restarted rank from doing it again.
"""

import json
import os
from pathlib import Path
from typing import Any


def write_once(path: Path, value: dict[str, Any]) -> bool:
    """Write `value` as JSON under a new name, with its folder synced; False when the name is taken.

    Raises:
        OSError: the folder cannot be written; nothing is left under the name.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(value, file)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            # A link fails where the name exists, which a rename would not.
            path.hardlink_to(temporary)
        except FileExistsError:
            return False
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return True
