"""The quick search gives what the slow one gives: a sieve first and cores then, or all cores at once."""

import random
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.detect import search
from holdfast.detect.catalogue import UNNAMED, StreamKind
from holdfast.detect.database import hits
from holdfast.detect.literals import pieces
from holdfast.detect.matcher import FOLD_MIN, StreamSource
from holdfast.detect.patterns import number_finder
from holdfast.detect.search import numbers_of
from holdfast.detect.sieve import ORDINARY, Surprise, sieve_of
from holdfast.model.evidence import Role
from whole_logs import MATCHER

CATALOGUE = MATCHER.catalogue
SLOW, QUICK = 1 << 60, 0
EXAMPLES = [line for rule in CATALOGUE.scanned for line in (*rule.matches, *rule.rejects)]
PROGRESS = [line for rule in CATALOGUE.scanned if rule.role is Role.PROGRESS for line in rule.matches]
STEPS = [
    "[2026-05-27 07:58:10] iteration {:8d}/  500000 | lm loss: 2.5E+00 | grad norm: 0.412 | loss scale: 1.0 |",
    "[rank0]:[titan] 2026-05-18 16:07:39,051 - root - INFO - step: {}  loss:  2.91027  tps: 7,094  mfu: 0.16%",
    "{{'loss': {}.25, 'grad_norm': 1.4142, 'epoch': 0.02}}",
    " 42%|####      | {}/1000 [00:29<1:22:01,  2.83s/it]",
    "epoch {} done, errors: 0",
]
FAULTS = [
    core
    for rule in CATALOGUE.scanned
    if rule.role is not Role.PROGRESS and rule.kind != UNNAMED
    for core in dict.fromkeys(rule.cores)
]


def matches(data, sieve_min, monkeypatch, *, sizes=(1 << 20,), sampled=False, numbered=True):
    """Every match of a stream that is fed in pieces of these sizes, again and again."""
    with monkeypatch.context() as patch:
        patch.setattr(search, "SIEVE_MIN", sieve_min)
        stream = MATCHER.stream(StreamSource(kind=StreamKind.ANY), sampled=sampled, numbered=numbered)
        found, place, turn = [], 0, 0
        while place < len(data):
            size = sizes[turn % len(sizes)]
            found += stream.feed(data[place : place + size], 1_740_830_000.0)
            place, turn = place + size, turn + 1
        return found + stream.flush(1_740_830_000.0)


def same(data, monkeypatch, **more):
    quick = matches(data, QUICK, monkeypatch, **more)
    assert quick == matches(data, SLOW, monkeypatch, **more)
    return quick


def test_every_example_alone(monkeypatch):
    """Each example of each rule is judged alike by both ways."""
    for line in EXAMPLES:
        same(line.encode() + b"\n", monkeypatch)


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_examples_among_progress(end, monkeypatch):
    """Faults among many steps of several kinds: the same matches, folds and places, however lines end."""
    rng = random.Random(7)
    lines = [rng.choice(STEPS).format(i) for i in range(3000)]
    for example in EXAMPLES:
        lines.insert(rng.randrange(len(lines)), example)
    lines += [STEPS[0].format(i) for i in range(2000)]
    found = same(end.join(line.encode() for line in lines), monkeypatch, sizes=(1 << 20, 1 << 15, 777))
    assert any(match.count >= FOLD_MIN for match in found)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(
        st.one_of(
            st.sampled_from(EXAMPLES),
            st.sampled_from(PROGRESS),
            st.builds(str.format, st.sampled_from(STEPS), st.integers(0, 10**6)),
            st.text(max_size=60),
        ),
        max_size=120,
    ),
    many=st.integers(0, 100),
    sizes=st.lists(st.integers(1, 1 << 16), min_size=1, max_size=4),
    sampled=st.booleans(),
    numbered=st.booleans(),
    colour=st.booleans(),
)
def test_same_matches_by_both_ways(lines, many, sizes, sampled, numbered, colour, monkeypatch):
    """Whatever lines come, torn anywhere, coloured or not: the quick way and the slow way agree."""
    lines = [line for line in lines for _ in range(many if line.startswith("[rank0]:[titan]") else 1)]
    text = "\n".join(f"\x1b[31m{line}\x1b[0m" if colour and i % 3 == 0 else line for i, line in enumerate(lines))
    same(text.encode("utf-8", "replace"), monkeypatch, sizes=sizes, sampled=sampled, numbered=numbered)


@settings(deadline=None, max_examples=150)
@given(data=st.data(), core=st.sampled_from(FAULTS))
def test_the_sieve_passes_whatever_a_core_matches(data, core):
    """No text that a core matches is held back."""
    shape = re.compile(core.encode().decode("latin-1"), re.ASCII)
    text = data.draw(st.from_regex(shape, fullmatch=True, alphabet=st.characters(max_codepoint=126)))
    found = hits(MATCHER.databases.sieve, b"x " + text.encode("latin-1") + b" x\n")
    assert found, (core, text)


def test_quiet_text_passes_nothing():
    """What healthy jobs print all the time is not looked at twice."""
    block = (ORDINARY + "\n".join(step.format(7) for step in STEPS[:3]).encode() + b"\n") * 20
    assert not hits(MATCHER.databases.sieve, block)


def test_the_sieve_is_small():
    """With a thousand pieces, progress among them, Hyperscan's search takes a larger table and a fifth more time."""
    progress = [core for rule in CATALOGUE.scanned if rule.role is Role.PROGRESS for core in rule.cores]
    examples = "\n".join(line for rule in CATALOGUE.scanned for line in rule.matches).encode()
    assert len(sieve_of(list(dict.fromkeys(FAULTS)), ORDINARY, examples)) + len(set(progress)) < 900


def test_pieces_are_shared_and_unlike_ordinary_text():
    """A short piece that several cores hold stands for all of them, and a rare one is preferred to a usual one."""
    surprise = Surprise(ORDINARY)
    assert surprise.bits(b"raining ") < surprise.bits(b"QZ_#9@!~")
    assert surprise.bits(b"#9@!~") < surprise.bits(b"#9@!~QZ_")
    assert surprise.cost(b"QZ_#9@!~") == 1.0 < surprise.cost(b"in the ")
    assert sieve_of([f"{text}#XQZ@{text}" for text in ("the", "in", "of")]) == [r"\x23XQZ\x40"]


def test_numbers_of():
    """Numbers are read as `float` reads them, whether JSON knows them or not; a text that is none spoils all."""
    texts = [b"12", b"0.5", b"-3e-05", b"007", b"1.", b"nan", b"1e999", b"12345678901234567890123"]
    assert repr(numbers_of(texts)) == repr(tuple(map(float, texts)))
    assert numbers_of(texts[:3]) == (12.0, 0.5, -3e-05)
    assert [numbers_of(texts) for texts in ([], [b"1,2"], [b"1", b""], [b"1", b"x"], [b"null"])] == [()] * 5


def test_a_block_full_of_faults_is_searched_whole_and_the_next_without_the_sieve(monkeypatch):
    """A flood of errors costs no second search of each line, and the sieve is tried again later."""
    flood = b"OSError: [Errno 28] No space left on device\n" * 2500
    calm = b"nothing of note in this line\n" * 4000
    monkeypatch.setattr(search, "SIEVE_MIN", 1 << 14)
    asked = []
    seeker = search.Search(MATCHER.databases, MATCHER.finders)
    sift = seeker._sift
    monkeypatch.setattr(seeker, "_sift", lambda *args, **more: asked.append(1) or sift(*args, **more))
    whole = search.plain(MATCHER.databases, flood, 0, len(flood), progress=False)
    for block, tries in ((flood, 1), (flood, 1), (flood, 2), (calm, 2), (calm, 2), (calm, 2), (calm, 3), (calm, 4)):
        found = seeker.read(block, 0, len(block), progress=False, many=FOLD_MIN)
        assert (found.ends, len(asked)) == (whole if block is flood else {}, tries)


@pytest.mark.parametrize(
    ("core", "texts"),
    [
        ("abc", {b"abc"}),
        ("ab+c", {b"ab", b"bc"}),
        (r"(?:left|right) side\d", {b"left side", b"right side"}),
        ("x[ab]?y", {b"xy", b"xay", b"xby", b"x"}),
        (r"\d\w[^x]", set()),
        ("\u2501\u2501", {"\u2501\u2501".encode()}),
    ],
)
def test_pieces(core, texts):
    """Every match of a core holds one of the alternatives of each choice."""
    choices, caseless = pieces(core)
    assert ({text for choice in choices for text in choice}, caseless) == (texts, False)


def test_pieces_of_caseless_cores_and_of_groups_with_flags():
    """A flag for the whole core counts; a group with flags of its own says nothing plain."""
    assert pieces("(?i)Fatal")[1]
    assert pieces("ab(?i:CD)ef")[0] == [(b"ab",), (b"ef",)]


def test_a_core_without_a_fair_piece_is_looked_for_whole():
    """Short pieces would point at too many lines, and so would ordinary words."""
    assert sieve_of([r"ab\d"]) == [r"ab\d"]
    assert sieve_of([r"gradient: 1\d"], b"the gradient: 12") == [r"gradient: 1\d"]
    assert len(sieve_of(["one piece here", "other piece here"])) == 1


@pytest.mark.parametrize(
    ("core", "fits"),
    [
        (r"iteration +\d+/", True),
        (r"iteration \d+[/ ]", True),
        (r"iteration \d+", False),
        (r"step=\d+/", False),
        (r"(?i)iteration +\d+/", False),
    ],
)
def test_number_finders(core, fits):
    """A number can be read at a glance when one character stands before it and one ends it."""
    found = number_finder(core, " ")
    assert (found is not None) == fits
    if found is not None:
        assert re.findall(found, "iteration 12/ 40 iteration 13/40") == ["12", "13"]


def test_a_flood_hides_nothing(monkeypatch):
    """Blocks full of one rule's lines are searched at their ends; a line of another rule in their middle is found."""
    block = b"OSError: [Errno 28] No space left on device: '/data/shard'\n" * 17000
    other = b"[rank3]: KeyError: 'ids'\n"
    middle = block.find(b"\n", len(block) // 2) + 1
    stream = MATCHER.stream(StreamSource(kind=StreamKind.ANY))
    searched, whole = [], search.plain
    monkeypatch.setattr(search, "plain", lambda *told, **more: searched.append(1) or whole(*told, **more))
    for turn in range(6):
        data = block[:middle] + other + block[middle:] if turn == 4 else block
        found = stream.feed(data, 0.0)
        assert (found[0].offset, found[-1].line_no) == (stream.offset - len(data), stream.line_no)
        assert [match.rule.id for match in found if match.rank == 3] == (["data.bug"] if turn == 4 else [])
    assert len(searched) == 2
