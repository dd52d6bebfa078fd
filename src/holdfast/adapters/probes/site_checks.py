"""A site's own checks: executables in a folder, with the exit codes of Nagios.

Each is a file that its owner alone may write, run without arguments within the check's time limit, in a process group
of its own that is killed at the limit; `HOLDFAST_CHECK_MODE` tells it when it is run. 0 is well, 1 a warning, 2 is
critical; anything else, a kill or a hang says nothing, and what the same file said in two looks before still holds.
Judging is pure.
"""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from holdfast.adapters.probes.check import Judging, Problem, Reading, check, problem, source
from holdfast.adapters.probes.reach import Reach, limit
from holdfast.model.evidence import Place
from holdfast.os.files import foreign
from holdfast.os.programs import Command, Ran, run

LIMIT_S = 20.0
"""For each file; all are run at the same time."""
FILES_MAX = 16
SAID_MAX = 200
OUTPUT_MAX = 64 << 10
"""Bytes that are kept of what one file prints; the rest is read and dropped."""
WELL, WARNING, CRITICAL = 0, 1, 2
_LEARNED = "site:"
_SURE = 2
"""What a file said in so many looks of its own still holds when it cannot tell; a single answer may be a stray one."""
_LEFT_OVER = ("~", ".bak", ".orig", ".rpmnew", ".rpmsave", ".dpkg-dist", ".dpkg-new", ".dpkg-old", ".swp")
"""Ends of names that editors and package managers leave behind."""


class SiteResult(Struct, frozen=True, kw_only=True):
    """How one of the site's files ended."""

    path: str
    code: int | None
    """None: it was killed, hung, or could not be run."""
    said: str = ""
    hung: bool = False


def found(folder: Path, off: Sequence[str] = ()) -> tuple[list[Path], dict[str, str]]:
    """The executables of a folder in order of their names, and those that are refused, with the reason.

    Raises:
        OSError: the folder cannot be read.
        ValueError: others may write into it, or it holds too many.
    """
    if why := foreign(folder.stat()):
        raise ValueError(f"{folder} {why}: nothing of it is run")
    good: list[Path] = []
    refused: dict[str, str] = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name.endswith(_LEFT_OVER) or path.name in off:
            continue
        try:
            facts = path.stat()
        except OSError as error:
            refused[str(path)] = f"{error.strerror}"
            continue
        if not stat.S_ISREG(facts.st_mode) or not facts.st_mode & 0o111:
            continue
        if why := foreign(facts):
            refused[str(path)] = f"it {why}: not run"
        else:
            good.append(path)
    if len(good) > FILES_MAX:
        raise ValueError(f"{folder} holds {len(good)} executables, at most {FILES_MAX} are run: put some into one")
    return good, refused


@source(
    "site",
    "the site's own executables in `site_checks`, all at once, each within the limit",
    "executables in `site_checks`, writable by their owner alone",
    LIMIT_S + 5.0,
    60.0,
)
async def _site(reach: Reach) -> Reading:
    if not reach.config.site_checks:
        return Reading(absent="no folder of the site's checks is named")
    folder = Path(reach.config.site_checks)
    try:
        files, refused = await asyncio.to_thread(found, folder, reach.config.site_off)
    except FileNotFoundError:
        return Reading(absent=f"there is no folder {folder}")
    except (OSError, ValueError) as error:
        return Reading(failed=f"{error}")
    if not files and not refused:
        return Reading(absent=f"{folder} holds no executable")
    env = {**reach.env, "HOLDFAST_CHECK_MODE": reach.mode.value, "HOLDFAST_CHECK_JOB": reach.job}
    commands = [Command(argv=(str(path),), env=env, kept_max=OUTPUT_MAX // 2) for path in files]
    ran = await asyncio.gather(*(run(one, limit(LIMIT_S)) for one in commands))
    results = [SiteResult(path=path, code=None, said=why) for path, why in refused.items()]
    results += [_result(str(path), one) for path, one in zip(files, ran, strict=True)]
    return Reading(facts=tuple(results))


def _result(path: str, ran: Ran) -> SiteResult:
    if ran.hung:
        said = f"did not end within {limit(LIMIT_S):g} s and was killed"
        return SiteResult(path=path, code=None, said=said, hung=True)
    if ran.code is None:
        return SiteResult(path=path, code=None, said=f"could not be run: {ran.err}"[:SAID_MAX])
    # Nagios shows the first line of standard output; the rest and what follows a bar are figures.
    line = next((line for line in (*ran.out.splitlines(), *ran.err.splitlines()) if line.strip()), "")
    said = "".join(char for char in line.split("|")[0].strip() if char.isprintable())[:SAID_MAX]
    if ran.code in {WELL, WARNING, CRITICAL}:
        return SiteResult(path=path, code=ran.code, said=said)
    return SiteResult(path=path, code=None, said=f"ended with {ran.code}: {said}" if said else f"ended with {ran.code}")


@check(
    "site",
    "what the site's own checks say (exit codes of Nagios)",
    "site",
    "check.site",
    "check.site_warning",
    "check.hung",
    "check.unreadable",
    looks=2,
)
def site(facts: tuple[SiteResult, ...], judging: Judging) -> Iterator[Problem]:
    """What the site's files say; one that could not tell keeps what it said in two looks before."""
    known = judging.learned
    names = {_LEARNED + one.path for one in facts}
    for key in [key for key in known if key.startswith(_LEARNED) and key not in names]:
        del known[key]
    for one in facts:
        key, where, name = _LEARNED + one.path, Place(path=one.path), Path(one.path).name
        if one.code is None:
            rule = "check.hung" if one.hung else "check.unreadable"
            yield problem(rule, f"{name}: {one.said}", where, warning=True)
        elif one.code == WELL:
            known.pop(key, None)
        else:
            code, times, _ = _recalled(known.get(key, ""))
            times = min(times + 1, _SURE) if code == str(one.code) else 1
            known[key] = f"{one.code}*{times}|{one.said}"
        if key in known:
            code, times, said = _recalled(known[key])
            if one.code is not None or times >= _SURE:
                warning = code != str(CRITICAL)
                rule, word = ("check.site_warning", "a warning") if warning else ("check.site", "critical")
                yield problem(rule, f"{name}: {said or word}", where, text=said, warning=warning)


def _recalled(remembered: str) -> tuple[str, int, str]:
    """Exit code, in how many looks it came, words. What an older version wrote has no count, and was a lasting one."""
    head, _, said = remembered.partition("|")
    code, _, times = head.partition("*")
    return code, int(times) if times.isdecimal() else _SURE, said
