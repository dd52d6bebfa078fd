"""Errors that no rule names: which of them ended a log, and what they are taken for."""

import pytest

from holdfast.detect.catalogue import StreamKind
from holdfast.detect.matcher import StreamSource
from holdfast.detect.unnamed import CHAIN_BYTES, KEPT_FIRST, KEPT_LAST, UnnamedErrors, domain_of, findings_of
from holdfast.model.evidence import Domain, Role
from whole_logs import MATCHER


def ending(text, *, after=-1, progressed=False, beside_job=False):
    errors = UnnamedErrors()
    for match in MATCHER.unnamed(StreamSource(kind=StreamKind.ANY), text.encode(), 0, 0.0):
        errors.take(match)
    return errors.ending(size=len(text.encode()), after=after, progressed=progressed, beside_job=beside_job)


def ids(chain):
    return [match.rule.id for match in chain]


def test_the_reason_goes_before_the_exit():
    """Of the lines that a log ends with, the one that says why comes first, whatever their order."""
    assert ids(ending("Error: the mixture names no corpus\nProcess finished with exit code 3\n")) == [
        "generic.error",
        "generic.exit",
    ]


def test_lines_are_numbered_where_they_cannot_be_read_again():
    """With the number of lines before them given, the end's lines carry numbers of the whole log, and offsets anyway."""
    source = StreamSource(kind=StreamKind.ANY)
    found = MATCHER.unnamed(source, b"part 9\nERROR: part 10 is stale\n", 700, 0.0, lines_before=90)
    assert [(match.line_no, match.offset) for match in found] == [(92, 707)]
    assert [m.line_no for m in MATCHER.unnamed(source, b"ERROR: part 10 is stale\n", 700, 0.0)] == [0]


def test_far_from_the_end_is_no_end():
    """An error with much printed after it did not end the program; a fatal one is given more room."""
    rest = "reading on, part after part\n" * 60
    assert ending("ERROR: the cache is stale\n" + rest) == ()
    assert ids(ending("FATAL: the cache is stale\n" + rest)) == ["generic.fatal"]


def test_older_trouble_is_not_this_trouble():
    """Lines further apart than one trouble's are not joined to it, nor those before the last sign of life."""
    gap = "reading on, part after part\n" * (CHAIN_BYTES // 20)
    chain = ending("FATAL: the first map is stale\n" + gap + "FATAL: the second map is stale\n")
    assert [match.captures["message"] for match in chain] == ["the second map is stale"]
    assert ending("FATAL: the map is stale\n", after=5) == ()


def test_complaints_count_only_before_any_step():
    """A mere complaint at the very end is something only where the log shows no step at all."""
    text = "could not lease a slot of the cache\n"
    assert ids(ending(text)) == ["generic.complaint"]
    assert ending(text, progressed=True) == ()


@pytest.mark.parametrize(
    "line",
    [
        "[    2.10] ACPI Error: No handler for Region [SYSI]",
        "Mar  1 10:00:00 node07 systemd[1]: Failed to start Crash recovery kernel arming.",
        "node07 kernel: foo: error: probe failed",
    ],
)
def test_system_logs_are_no_output(line):
    """Boot messages of kernels and services are nobody's job."""
    assert ending(line + "\n") == ()


def test_memory_is_bounded():
    """Of thousands of error lines a few are kept."""
    errors = UnnamedErrors()
    taken = size = 0
    for number in range(40):
        end = f"ERROR: part {number} is stale\n".encode() * 50
        for match in MATCHER.unnamed(StreamSource(kind=StreamKind.ANY), end, size, 0.0):
            errors.take(match)
            taken += 1
        size += len(end)
    assert taken > KEPT_FIRST + KEPT_LAST
    assert len(errors.ending(size=size, after=-1, progressed=False, beside_job=False)) <= KEPT_FIRST + KEPT_LAST


@pytest.mark.parametrize(
    ("text", "domain"),
    [
        ("ERROR: cannot reach peer 3 on port 29500", Domain.NETWORK),
        ("ERROR: quota of the folder is used up", Domain.STORAGE),
        ("ERROR: the container has no driver", Domain.PLATFORM),
        ("ERROR: NVLink 3 reports a hardware error", Domain.HARDWARE),
        ("ERROR: the mixture names no corpus", Domain.APPLICATION),
    ],
)
def test_domain_is_guessed_from_words(text, domain):
    """The words of an error say whose it most likely is; without any it is the program's."""
    assert domain_of(text) is domain


def test_one_root():
    """The first line becomes the root, the others follow from it; a complaint is never a root."""
    made = findings_of(ending("Error: no corpus\nexit status: 3\n"), file="a", prefix="0", at=1.0)
    assert [finding.role for finding in made] == [Role.ROOT, Role.CASCADE]
    weak = findings_of(ending("could not lease a slot\n"), file="a", prefix="0", at=1.0)
    assert [finding.role for finding in weak] == [Role.CASCADE]
