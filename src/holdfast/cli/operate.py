"""A person's word, sent to the controller: `holdfast node drain ...`, `approve`, `reject`.

Who said it is the user of this process; the controller journals it beside what the token stands for.
"""

from __future__ import annotations

import asyncio
import getpass

from holdfast.cli import screen
from holdfast.cli.answer import Answer
from holdfast.cli.json_forms import form
from holdfast.cli.options import ControllerOptions
from holdfast.errors import UsageError
from holdfast.model.events import Command
from holdfast.wiring.settings import find_controller

DID: dict[Command, str] = {
    Command.DRAIN: "will be drained",
    Command.RETURN: "will be returned",
    Command.REBOOT: "will be rebooted once it is drained",
    Command.REPLACE: "will be replaced once it is drained",
    Command.CONFIRM_HEALTHY: "is confirmed as healthy",
    Command.APPROVE: "is approved",
    Command.REJECT: "is rejected",
    Command.WITHDRAW: "is no longer approved by you",
}


def operate(at: ControllerOptions, command: Command, *, node: str = "", order: str = "", why: str = "") -> Answer:
    """Send one command and say what comes of it.

    Raises:
        UsageError: `--why` is blank where a reason is needed.
        NotFoundError: no such node or order.
        RefusedError: the token does not allow it.
        LinkError: no controller answers.
    """
    why = screen.clean(why)
    if not why and command not in {Command.APPROVE, Command.WITHDRAW}:
        raise UsageError("--why is empty: say in a few words why, it is kept in the journal")
    from holdfast.cli.remote import send  # noqa: PLC0415 - help and completion need no HTTP client

    link = find_controller(cluster_dir=at.cluster_dir, url=at.url, config=at.config)
    answer = asyncio.run(send(link, command, who=user(), why=why, node=node, order=order))
    made = form(command=command.value, seq=answer.seq) | ({"node": node} if node else {"order": order})
    made |= {"waits": answer.waits} if answer.waits else {}
    target = f"node {node}" if node else f"order {order}"
    look = f"holdfast node show {node}" if node else "holdfast orders --all"
    did = answer.standing if answer.waits else DID[command]
    said = f"{target} {did} (event {answer.seq} of the journal); `{look}` shows what follows."
    return Answer(lambda: made, lambda: [said])


def user() -> str:
    """The user's name, or their number where no name is known."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return "unknown"
