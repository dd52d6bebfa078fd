"""`holdfast checkpoints list DIR`, `verify DIR`: what can be restored from a folder, and whether it can be trusted.

Reads only; needs no controller and no torch. Exit code 1 when something is damaged.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
from rich.text import Text

from holdfast.checkpoint import CheckpointError, CheckpointInfo, Problem, Verdict, scan, verify
from holdfast.cli import screen
from holdfast.cli.config import JsonOption
from holdfast.errors import EXIT_FAILED, NotFoundError, UserError

VERSION = 1

app = typer.Typer(
    help="List and verify checkpoints that holdfast.checkpoint saved.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)

FolderArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="The folder that checkpoints are saved in, or one checkpoint.")
]


def _found(folder: Path) -> list[CheckpointInfo]:
    """Checkpoints of a folder, newest first, or the one that it is."""
    if not folder.is_dir():
        raise NotFoundError(f"there is no folder {folder}")
    folder = folder.resolve()
    try:
        inside = scan(folder)
        return inside or [info for info in scan(folder.parent) if info.path.name == folder.name]
    except CheckpointError as error:
        raise UserError(str(error)) from error


def _bytes(count: int) -> str:
    """`1.4 GiB`."""
    if count < 1024:
        return f"{count} B"
    size = count / 1024
    for unit in ("KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


@app.command("list")
def list_checkpoints(folder: FolderArgument, *, json: JsonOption = False) -> None:
    """List checkpoints, newest first, with the quick check: the manifest decodes, every file has its size."""
    found = _found(folder)
    if json:
        screen.say_json({"version": VERSION, "folder": str(folder), "checkpoints": [_info_form(i) for i in found]})
        return
    if not found:
        screen.say(f"No checkpoints in {folder}.")
        return
    at = screen.now()
    made = screen.table("step", "epoch", "attempt", "saved", "ranks", "size", "state", right=("step", "epoch", "size"))
    for info in found:
        manifest = info.manifest
        state = screen.state("good" if info.ok else "damaged")
        if info.problem:
            state.append(f": {screen.clean(info.problem)}")
        made.add_row(
            str(info.step),
            str(info.epoch),
            Text(screen.clean(manifest.attempt) if manifest else "-"),
            f"{screen.age(manifest.saved_at, at)} ago" if manifest else "-",
            str(manifest.world_size) if manifest else "-",
            _bytes(manifest.size) if manifest else "-",
            state,
        )
    screen.console().print(made)


def _info_form(info: CheckpointInfo) -> dict[str, Any]:
    manifest = info.manifest
    return {
        "checkpoint": info.name,
        "path": str(info.path),
        "step": info.step,
        "epoch": info.epoch,
        "ok": info.ok,
        "problem": info.problem,
        "attempt": manifest.attempt if manifest else None,
        "saved_at": manifest.saved_at if manifest else None,
        "world_size": manifest.world_size if manifest else None,
        "layout": manifest.layout if manifest else None,
        "bytes": manifest.size if manifest else None,
    }


@app.command("verify")
def verify_checkpoints(
    folder: FolderArgument,
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Names and sizes only, no hashes.")] = False,
    json: JsonOption = False,
) -> None:
    """Read every file and compare it with the manifest's hashes. Exit code 1 when a checkpoint is damaged."""
    found = _found(folder)
    if not found:
        raise NotFoundError(f"there are no checkpoints in {folder}")
    verdicts = _verify(found, full=not quick)
    if json:
        form = {"version": VERSION, "folder": str(folder), "checkpoints": [_verdict_form(v) for v in verdicts]}
        screen.say_json(form)
    else:
        out = screen.console()
        for verdict in verdicts:
            state = screen.state("good" if verdict.ok else "damaged")
            out.print(state.append(f" {screen.clean(verdict.name)}", style="default"), _note(verdict), sep="")
            for problem in verdict.problems:
                out.print(Text(f"     {screen.clean(str(problem))}"))
        newest = next((verdict.name for verdict in verdicts if verdict.ok), None)
        out.print(Text(f"Newest good one: {newest}." if newest else "None can be trusted."))
    if not all(verdict.ok for verdict in verdicts):
        raise typer.Exit(EXIT_FAILED)


def _verify(found: list[CheckpointInfo], *, full: bool) -> list[Verdict]:
    """Verify one after another, with a bar on standard error when somebody watches."""
    columns = (TextColumn("verifying"), BarColumn(), DownloadColumn(binary_units=True))
    verdicts = []
    with Progress(
        *columns, console=screen.error_console(), transient=True, disable=not screen.stderr_is_terminal()
    ) as bar:
        task = bar.add_task("", total=sum(info.manifest.size if info.manifest else 0 for info in found))
        for info in found:
            try:
                verdict = verify(info.path, full=full)
            except (CheckpointError, OSError) as error:
                # Removed or made unreadable since it was listed: that is a verdict, too.
                verdict = Verdict(info.name, "quick", None, (Problem("unreadable", info.name, str(error)),))
            verdicts.append(verdict)
            bar.advance(task, info.manifest.size if info.manifest else 0)
    return verdicts


def _note(verdict: Verdict) -> Text:
    if verdict.level == "full" and verdict.ok:
        return Text(f", {_bytes(verdict.bytes_read)} read and compared", style="dim")
    return Text(f", {verdict.level} check", style="dim")


def _verdict_form(verdict: Verdict) -> dict[str, Any]:
    return {
        "checkpoint": verdict.name,
        "ok": verdict.ok,
        "level": verdict.level,
        "step": verdict.manifest.step if verdict.manifest else None,
        "bytes_read": verdict.bytes_read,
        "problems": [{"kind": p.kind, "path": p.path, "detail": p.detail} for p in verdict.problems],
    }
