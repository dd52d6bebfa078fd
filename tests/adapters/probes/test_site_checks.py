"""A site's own checks in a folder: exit codes as Nagios has them, time limit, kill switch, who may write them."""

import asyncio
import os

import pytest

from holdfast.adapters.clock import SystemClock
from holdfast.adapters.probes.check import Judging, Limits, Mode, Profile, Status
from holdfast.adapters.probes.checks import CHECKS, SOURCES
from holdfast.adapters.probes.config import parse_config
from holdfast.adapters.probes.reach import Reach
from holdfast.adapters.probes.rounds import Looker, exit_code
from holdfast.adapters.probes.site_checks import FILES_MAX, SiteResult, site
from holdfast.detect.counters import CounterFold

CHECK = [CHECKS["site"]]


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "checks.d"
    place.mkdir(mode=0o755)
    return place


def script(folder, name, body, mode=0o755):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(mode)
    return path


def settings(folder, more="", *, limit_s=60.0):
    return parse_config(f'site_checks = "{folder}"\n{more}[checks.site]\nlimit_s = {limit_s}\n')


def looker(folder, more=""):
    return Looker(Reach(dict(os.environ)), settings(folder, more), clock=SystemClock())


def look(one, mode=Mode.PROLOG):
    """One look; the reading processes are ended with it."""

    async def body():
        try:
            (verdict,) = await one.look(SOURCES["site"], CHECK, mode)
        finally:
            await one.reach.close()
        return verdict

    return asyncio.run(body())


def judging(learned):
    """What the judge of a look gets that remembers this."""
    return Judging(profile=Profile(), limits=Limits(), mode=Mode.PERIODIC, at=0.0, now=0.0, counters=CounterFold(), courses={},
                   learned=learned)  # fmt: skip


def told(verdict):
    return [(problem.rule, problem.summary) for problem in verdict.problems]


def test_exit_codes_are_those_of_nagios(folder):
    """0 is well, 1 a warning, 2 critical with the first line that was said; any other code cannot tell. Figures after a
    bar, and further lines, are left out; the mode is told."""
    script(folder, "10-well", "echo fine")
    script(folder, "20-warns", 'echo "scratch is at 91 % | used=91"; exit 1')
    script(folder, "30-critical", 'echo "no licence ($HOLDFAST_CHECK_MODE)"; echo more; exit 2')
    script(folder, "40-odd", "echo whatever >&2; exit 7")
    verdict = look(looker(folder))
    assert verdict.status is Status.CRITICAL
    assert told(verdict) == [
        ("check.site_warning", "20-warns: scratch is at 91 %"),
        ("check.site", "30-critical: no licence (prolog)"),
        ("check.unreadable", "40-odd: ended with 7: whatever"),
    ]
    assert exit_code([verdict]) == 2


def test_the_agent_counts_a_problem_that_two_looks_see(folder):
    """A single critical answer may be a stray one."""
    script(folder, "fabric", "exit 2")
    one = looker(folder)
    assert told(look(one, Mode.PERIODIC)) == []
    assert told(look(one, Mode.PERIODIC)) == [("check.site", "fabric: critical")]


def test_one_that_hangs_is_killed_and_keeps_what_it_said(folder):
    """A hung check is no verdict: the others count, and what it found before is neither forgotten nor made up."""
    flag = folder.parent / "hang"
    script(folder, "a", f'[ -e {flag} ] && exec sleep 600; echo "bad cable"; exit 2')
    script(folder, "b", f"[ -e {flag} ] && exec sleep 600; exit 0")
    one = looker(folder)
    for _ in range(2):
        assert told(look(one)) == [("check.site", "a: bad cable")]
    flag.touch()
    one.config = settings(folder, limit_s=2.0)
    assert told(look(one)) == [
        ("check.hung", "a: did not end within 2 s and was killed"),
        ("check.site", "a: bad cable"),
        ("check.hung", "b: did not end within 2 s and was killed"),
    ]
    one.config = settings(folder)
    (folder / "a").unlink()
    (folder / "b").unlink()
    flag.unlink()
    script(folder, "c", "exit 0")
    assert told(look(one)) == []
    assert not [key for key in one.memory.learned if key.startswith("site:")]


def test_one_stray_answer_and_a_hang_are_not_two_looks():
    """What a file said once does not outlive a look without a verdict; what it said twice does, also over a restart."""
    critical = SiteResult(path="/c/a", code=2, said="bad cable")
    odd = SiteResult(path="/c/a", code=None, said="ended with 7")
    learned = {}

    def rules(result):
        return [problem.rule for problem in site((result,), judging(learned))]

    assert rules(critical) == ["check.site"]
    assert rules(odd) == ["check.unreadable"]
    assert rules(critical) == ["check.site"]
    assert rules(odd) == ["check.unreadable", "check.site"]
    assert rules(SiteResult(path="/c/a", code=1)) == ["check.site_warning"]
    assert rules(critical) == ["check.site"]
    assert rules(odd) == ["check.unreadable"]
    assert rules(SiteResult(path="/c/a", code=0)) == []
    assert not learned
    learned["site:/c/a"] = "2|bad cable"  # as versions without a count wrote it
    assert rules(odd) == ["check.unreadable", "check.site"]
    assert rules(critical) == ["check.site"]
    assert learned == {"site:/c/a": "2*2|bad cable"}


def test_the_agent_does_not_count_a_stray_answer_with_a_hang(folder):
    """Critical once, then no verdict for good: nothing is quarantined."""
    flag = folder.parent / "odd"
    script(folder, "a", f"[ -e {flag} ] && exit 7; exit 2")
    one = looker(folder)
    assert told(look(one, Mode.PERIODIC)) == []
    flag.touch()
    seen = [rule for _ in range(3) for rule, _ in told(look(one, Mode.PERIODIC))]
    assert set(seen) == {"check.unreadable"}


def test_one_that_cannot_be_started_says_why(folder):
    """An interpreter that is not there is told, not an exit code that there never was."""
    path = script(folder, "a", "exit 0")
    path.write_text("#!/no/such/interpreter\n")
    assert told(look(looker(folder))) == [("check.unreadable", "a: could not be run: No such file or directory")]


def test_what_others_may_write_is_not_run(folder):
    """A file, or a folder, that somebody else could change would be run as the agent."""
    ran = folder.parent / "ran"
    script(folder, "open", f"touch {ran}", mode=0o777)
    assert told(look(looker(folder))) == [("check.unreadable", "open: it may be written by others: not run")]
    folder.chmod(0o777)
    verdict = look(looker(folder))
    assert (verdict.status, "may be written by others" in verdict.detail) == (Status.UNKNOWN, True)
    assert not ran.exists()


def test_only_executables_count_and_one_can_be_switched_off(folder):
    """Notes, hidden files, editors' copies and what `disable` names are left alone; `site` switches all off."""
    script(folder, "notes.txt", "exit 2", mode=0o644)
    script(folder, ".hidden", "exit 2")
    script(folder, "old~", "exit 2")
    script(folder, "loud", "exit 2")
    assert look(looker(folder, 'disable = ["site/loud"]\n')).status is Status.ABSENT
    assert not looker(folder, 'disable = ["site"]\n').enabled(CHECKS["site"], Mode.PERIODIC)


def test_a_folder_that_is_not_there_or_too_full(folder):
    """Without a folder the check does not apply; a folder with too many is named, none is run."""
    assert look(looker(folder / "none")).status is Status.ABSENT
    assert look(looker("")).status is Status.ABSENT
    for number in range(FILES_MAX + 1):
        script(folder, f"c{number}", "exit 2")
    verdict = look(looker(folder))
    assert (verdict.status, f"at most {FILES_MAX}" in verdict.detail) == (Status.UNKNOWN, True)
