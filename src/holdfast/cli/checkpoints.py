"""`holdfast checkpoints list DIR`, `verify DIR`, `repair DIR`: what can be restored, and may it be trusted?

Knows what holdfast.checkpoint saves and the layouts of other frameworks; needs no controller and no torch. Exit code 1
when something is damaged. Only `repair` writes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, DownloadColumn, TextColumn
from rich.table import Table
from rich.text import Text

from holdfast.checkpoint import CheckpointError, CheckpointInfo, Problem, Verdict, repair, scan, verify
from holdfast.checkpoint.layouts import ForeignCheckpoint, recognise, set_aside, verify_foreign
from holdfast.cli import screen
from holdfast.cli.answer import Answer, answering, group
from holdfast.cli.json_forms import fields_of, form
from holdfast.errors import EXIT_FAILED, NotFoundError, UserError

app = group("List, verify and repair checkpoints, whoever saved them.")

FolderArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="The folder that checkpoints are saved in, or one checkpoint.")
]


Found = CheckpointInfo | ForeignCheckpoint


def _found(folder: Path) -> Sequence[Found]:
    """Checkpoints of a folder, newest first, or the one that it is."""
    if not folder.exists():
        raise NotFoundError(f"there is no folder {folder}")
    folder = folder.resolve()
    try:
        looks: tuple[Callable[[Path], Sequence[Found]], ...] = (scan, recognise)
        for look in looks:
            if folder.is_dir() and (inside := look(folder)):
                return inside
            beside: Sequence[Found] = ()
            with contextlib.suppress(CheckpointError):  # the folder above may be anything
                beside = look(folder.parent)
            if one := [found for found in beside if found.path == folder]:
                return one
    except CheckpointError as error:
        raise UserError(str(error)) from error
    return []


def _some(folder: Path) -> Sequence[Found]:
    """As `_found`; at least one."""
    if found := _found(folder):
        return found
    raise NotFoundError(f"there are no checkpoints in {folder}")


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
@answering
def list_checkpoints(folder: FolderArgument) -> Answer:
    """List checkpoints, newest first, with the quick check. It passes when all files are there and have their size.

    Knows holdfast.checkpoint, Megatron-LM, DeepSpeed, HF Trainer, Lightning, local ones of nvidia-resiliency-ext,
    torch's distributed checkpoints and files of torch.save and safetensors.
    """
    found = _found(folder)
    return Answer(
        lambda: form(folder=str(folder), checkpoints=[_info_form(info) for info in found]),
        lambda: [_list_table(found) if found else f"No checkpoints in {folder}."],
    )


def _list_table(found: Sequence[Found]) -> Table:
    at = screen.now()

    def row(info: Found) -> Iterator[screen.Cell]:
        yield info.step
        if isinstance(info, CheckpointInfo):
            yield from (info.epoch, (info.manifest.attempt or None) if info.manifest else None)
        else:
            yield from (info.name, info.layout)
        yield f"{screen.age(info.saved_at, at)} ago" if info.saved_at else None
        if isinstance(info, CheckpointInfo):
            yield (info.manifest.world_size or None) if info.manifest else None
        else:
            yield len(info.files)
        yield None if info.size is None else _bytes(info.size)
        state = screen.state("good" if info.ok else "damaged")
        yield state if info.ok else state.append(f": {screen.clean(str(info.problem))}")

    own = isinstance(found[0], CheckpointInfo)
    names = ("epoch", "attempt", "saved", "ranks") if own else ("checkpoint", "layout", "saved", "files")
    return screen.table("step", *names, "size", "state", rows=map(row, found), right=("step", "epoch", "size"))


def _info_form(info: Found) -> dict[str, Any]:
    manifest = info.manifest if isinstance(info, CheckpointInfo) else None
    return {
        "checkpoint": info.name,
        "path": str(info.path),
        "step": info.step,
        "epoch": info.epoch if isinstance(info, CheckpointInfo) else None,
        "ok": info.ok,
        "problem": None if info.ok else str(info.problem),
        "attempt": manifest.attempt if manifest else None,
        "saved_at": info.saved_at or None,
        "world_size": manifest.world_size if manifest else None,
        "layout": info.layout,
        "bytes": info.size,
    }


@app.command("verify")
@answering
def verify_checkpoints(
    folder: FolderArgument,
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Names and sizes only, no hashes.")] = False,
) -> Answer:
    """Read every file and compare it with the hashes that are kept of it. Exit code 1 when a checkpoint is damaged.

    What holdfast.checkpoint saved has a hash of every file; torch.save keeps a checksum of every record; safetensors
    and what torch.save wrote before version 1.6 keep none, so that only missing and cut files are found.
    """
    found = _some(folder)
    verdicts = _verify(found, full=not quick)
    pairs = list(zip(found, verdicts, strict=True))
    return Answer(
        lambda: form(folder=str(folder), checkpoints=[_verdict_form(*pair) for pair in pairs]),
        lambda: _verdict_lines(verdicts),
        0 if all(verdict.ok for verdict in verdicts) else EXIT_FAILED,
    )


def _verdict_lines(verdicts: list[Verdict]) -> Iterator[Text]:
    for verdict in verdicts:
        state = screen.state("good" if verdict.ok else "damaged")
        yield state.append(f" {screen.clean(verdict.name)}", style="default").append_text(_note(verdict))
        for problem in verdict.problems:
            yield Text(f"     {screen.clean(str(problem))}")
    newest = next((verdict.name for verdict in verdicts if verdict.ok), None)
    yield Text(f"Newest good one: {newest}." if newest else "None can be trusted.")


def _verify(found: Sequence[Found], *, full: bool) -> list[Verdict]:
    """Verify one after another, with a bar on standard error when somebody watches."""
    columns = (TextColumn("verifying"), BarColumn(), DownloadColumn(binary_units=True))
    verdicts = []
    with screen.progress(*columns) as bar:
        task = bar.add_task("", total=sum(info.size or 0 for info in found))
        for info in found:
            try:
                if isinstance(info, CheckpointInfo):
                    verdict = verify(info.path, full=full)
                else:
                    verdict = verify_foreign(info, full=full)
            except (CheckpointError, OSError) as error:
                # Removed or made unreadable since it was listed: that is a verdict, too.
                verdict = Verdict(info.name, "quick", None, (Problem("unreadable", info.name, str(error)),))
            verdicts.append(verdict)
            bar.advance(task, info.size or 0)
    return verdicts


def _note(verdict: Verdict) -> Text:
    if verdict.level == "full" and verdict.ok:
        return Text(f", {_bytes(verdict.bytes_read)} read and compared", style="dim")
    return Text(f", {verdict.level} check", style="dim")


def _verdict_form(info: Found, verdict: Verdict) -> dict[str, Any]:
    return {
        "checkpoint": verdict.name,
        **fields_of(verdict, "ok level"),
        "step": info.step if verdict.manifest is None else verdict.manifest.step,
        "layout": info.layout,
        **fields_of(verdict, "bytes_read problems"),
    }


@app.command("repair")
@answering
def repair_checkpoints(
    folder: FolderArgument,
    *,
    mirror: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="A copy to fetch damaged ones from (holdfast.checkpoint only)."),
    ] = None,
) -> Answer:
    """Set damaged checkpoints aside, so that the newest good one is used. They are renamed to bad-NAME.

    Nothing is deleted. A checkpoint of holdfast.checkpoint is fetched again from a mirror that has it whole. The
    tracker of Megatron-LM and DeepSpeed is made to name the newest good one. Run it while no job writes there. Exit
    code 1 when none is good.
    """
    found = _some(folder)
    try:
        own = isinstance(found[0], CheckpointInfo)
        done = _repair_own(folder, mirror or []) if own else _repair_foreign(found)
    except CheckpointError as error:
        raise UserError(str(error)) from error
    resumes = next((info for info in _found(folder) if info.ok), None)
    lines = [screen.clean(_deed(deed)) for deed in done] or ["Nothing had to be repaired."]
    lines.append(f"The job resumes from {resumes.name}." if resumes else "None can be trusted.")
    made = form(folder=str(folder), repaired=done, resumes_from=resumes.name if resumes else None)
    return Answer(lambda: made, lambda: lines, 0 if resumes else EXIT_FAILED)


def _deed(deed: dict[str, Any]) -> str:
    kept = f"kept as {deed['kept_as']}" if deed["kept_as"] else "could not be set aside"
    fetched = f"; fetched again from {deed['fetched_from']}" if deed["fetched_from"] else ""
    return f"{deed['problem']}; {kept}{fetched}."


def _repair_own(folder: Path, mirrors: list[Path]) -> list[dict[str, Any]]:
    return [
        {
            "checkpoint": done.name,
            "problem": done.problem,
            "kept_as": str(done.kept_as) if done.kept_as else None,
            "fetched_from": str(done.fetched_from) if done.fetched_from else None,
        }
        for done in repair(folder, mirrors)
    ]


def _repair_foreign(found: Sequence[Found]) -> list[dict[str, Any]]:
    """What was never finished is left alone: its framework does not load it."""
    checkpoints = [info for info in found if isinstance(info, ForeignCheckpoint)]
    verdicts = {verdict.name: verdict for verdict in _verify(found, full=True)}
    bad = [one for one in checkpoints if any(p.kind != "not_published" for p in verdicts[one.name].problems)]
    spoilt = [path for verdict in verdicts.values() for path in verdict.spoilt]
    kept = [one for one in checkpoints if verdicts[one.name].ok or one in bad]
    aside = set_aside(kept, bad, spoilt) if bad or spoilt else []
    return [
        {
            "checkpoint": name,
            "problem": verdicts[name].sentence if name in verdicts else f"{name} is damaged, there is another copy",
            "kept_as": str(path),
            "fetched_from": None,
        }
        for name, path in aside
    ]
