"""What a person orders from a page, with a reason: one form for nodes, jobs, orders, brakes and the mode.

`api.operate` judges who may and journals it; the answer is shown on the next page. Called by `routes.py`.
"""

from __future__ import annotations

from holdfast.api.auth import Identity, TokenBook
from holdfast.api.operate import operate
from holdfast.controller import Controller
from holdfast.errors import HoldfastError, NotFoundError, UsageError
from holdfast.model.answers import CommandRequest
from holdfast.model.cluster import JobKey
from holdfast.model.events import Command

NEEDS_NO_REASON = frozenset({Command.APPROVE, Command.WITHDRAW})
DID = {
    Command.DRAIN: "will be drained",
    Command.RETURN: "will be returned",
    Command.REBOOT: "will be rebooted once it is drained",
    Command.REPLACE: "will be replaced once it is drained",
    Command.CONFIRM_HEALTHY: "is confirmed as healthy",
    Command.EVACUATE: "is asked to save and will start elsewhere",
    Command.REQUEUE: "will be requeued",
    Command.HOLD: "is held",
    Command.RELEASE: "is released",
    Command.GIVE_UP: "is given up",
    Command.APPROVE: "is approved",
    Command.REJECT: "is rejected",
    Command.WITHDRAW: "is no longer approved by you",
    Command.RESET_BRAKE: "has its brake reset",
}


async def deed(
    controller: Controller, identity: Identity, form: dict[str, str], tokens: TokenBook | None = None
) -> tuple[str, bool]:
    """Carry out a form; returns a sentence for the next page, and whether it is a refusal."""
    try:
        asked = await _asked(controller, form)
        answer = await operate(controller, identity, asked, if_match=form.get("seen", ""), tokens=tokens)
    except HoldfastError as error:
        return f"Not done: {error}", True
    if answer.refused:
        return answer.refused, True
    if asked.command is Command.SET_MODE:
        return f"The mode is {asked.value} from event {answer.seq} on.", False
    name = asked.node or str(asked.job or "") or asked.group or "the order"
    kind = "Node" if asked.node else "Job" if asked.job else "Group" if asked.group else ""
    did = answer.standing if answer.waits else DID[asked.command]
    return f"{kind} {name} {did} (event {answer.seq} of the journal).".strip(), False


async def _asked(controller: Controller, form: dict[str, str]) -> CommandRequest:
    try:
        command = Command(form.get("command", ""))
    except ValueError as error:
        raise UsageError("that is no command") from error
    why = " ".join(form.get("why", "").split())
    if not why and command not in NEEDS_NO_REASON:
        raise UsageError("say in a few words why: it is kept in the journal")
    job: JobKey | None = None
    if form.get("job"):
        found = await controller.journal.jobs(job=form["job"])
        if not found:
            raise NotFoundError(f"there is no job {form['job']!r}")
        job = found[-1].key
    return CommandRequest(
        command=command,
        why=why,
        node=form.get("node", ""),
        job=job,
        order=form.get("order", ""),
        group=form.get("group", ""),
        value=form.get("value", ""),
        remedy=form.get("remedy", ""),
    )
