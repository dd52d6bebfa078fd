"""How far a message of the kernel is the kernel's own, and where it begins to repeat what a user chose.

Any user can have the kernel quote them: the options of a mount that fails, the path of a program, the name of a control
group, the name of a device. Such a message comes from the kernel and proves nothing of what is quoted. Pure.
"""

from __future__ import annotations

import re

# A quote or a value begins, a path, or the name that a device gives itself. What drivers say of hardware comes before.
_QUOTED = re.compile(r"""["'`=]|(?<!\w)/|\b(?:Product|Manufacturer|SerialNumber|input): """)


def own_part(body: str) -> int:
    """How many characters at the begin of a message are the kernel's own."""
    found = _QUOTED.search(body)
    return found.start() if found is not None else len(body)
