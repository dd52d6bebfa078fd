"""Is what this controller knows the newest there is? Asked before anything is shown, so that no read goes back in time.

A controller that stood still may have been superseded, and another has told clients more since. Called by the guard of
`auth.py`, by `/healthz`, by the cockpit and before a beat is answered. Time passes only while the journal reads.
"""

from __future__ import annotations

from holdfast.controller import Controller
from holdfast.errors import LinkError

DOUBT_S = 3.0
"""So long a scrape or a beat waits for the journal's word on who leads: less than Prometheus waits for a scrape."""


async def doubt(controller: Controller) -> str:
    """Why another may have told more than this controller knows; empty: nobody had when this was asked.

    One that surely leads asks nobody. Else the journal is looked at: it is whoever's epoch stands there.

    Raises:
        JournalError: the lease cannot be read.
    """
    if controller.may_act():
        return ""
    row = await controller.journal.lease()
    if row is None or row.epoch == controller.epoch:
        return ""
    return f"epoch {controller.epoch} was superseded: ask the controller that leads"


async def check_newest(controller: Controller) -> None:
    """Return when there is no such doubt.

    Raises:
        LinkError: another leads.
        JournalError: that cannot be told.
    """
    if why := await doubt(controller):
        raise LinkError(why)
