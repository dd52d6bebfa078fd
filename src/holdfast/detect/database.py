"""The compiled Hyperscan databases of a catalogue: made once, kept as bytes.

Called by `Matcher`; `adapters/catalogue_files` keeps the bytes on disk, `search` runs them over blocks of text.
Block mode is used: it is faster than streaming mode, and lines give natural ends to a block.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import hyperscan
from msgspec import Struct

from holdfast.detect.catalogue import UNNAMED, Catalogue, Rule
from holdfast.detect.literals import pieces
from holdfast.detect.patterns import number_finder
from holdfast.detect.sieve import ORDINARY, escaped, sieve_of
from holdfast.model.evidence import Role

FORM = 6
"""Of the bytes that `compile_database` makes; older ones are compiled anew."""
SIEVED = 1 << 24
"""Numbers of a sieve's own expressions begin above this; those below are the catalogue's."""
PIECE_MIN = 5
_STRIDE_1, _STRIDE_2 = rb"\x01\x02", rb"\x01\x02\x03"
"""Hyperscan chooses how many bytes its literal search steps at a time by the shortest literal. Steps of four, which it
takes when all are long and fewer than 800, are the slowest on text; two are best for long literals alone, one for mixed
ones. These never occur in a log and hold it to two and to one."""


class Databases(Struct, frozen=True):
    """A catalogue's databases. Those with `sieve` in their name hold pieces (numbers from `SIEVED`), not cores."""

    faults: hyperscan.Database
    """Every core of a rule with a name, but those that are progress alone."""
    progress: hyperscan.Database
    """The cores that are progress alone."""
    unnamed: hyperscan.Database
    """The cores of rules that know an error by its severity word alone."""
    sieve: hyperscan.Database
    """What a line must hold to be looked at by `faults`."""
    sieve_progress: hyperscan.Database
    """The same, and each core of `progress`, reported once in a block; where a finder looks for it, a piece of it."""
    once: hyperscan.Database
    """The cores of `faults`, each reported once in a block: what a flood is made of, at a fraction of its cost."""


def expressions(catalogue: Catalogue) -> tuple[list[str], list[tuple[Rule, ...]]]:
    """Distinct cores, and the rules that each one points at."""
    owners: dict[str, list[Rule]] = {}
    for rule in catalogue.scanned:
        for text in rule.cores:
            owners.setdefault(text, []).append(rule)
    return list(owners), [tuple(rules) for rules in owners.values()]


def number_finders(texts: Sequence[str], owners: Sequence[tuple[Rule, ...]]) -> dict[int, str]:
    """Expression number -> the same expression with a group around its number, for progress read at a glance."""
    found: dict[int, str] = {}
    for number, rules in enumerate(owners):
        if len(rules) == 1 and rules[0].role is Role.PROGRESS and rules[0].quick_after:
            finder = number_finder(texts[number], rules[0].quick_after)
            if finder is not None and _piece(texts[number]):
                found[number] = finder
    return found


def _piece(core: str) -> str:
    """The longest plain piece of a core as an expression; empty when it has none of a fair length."""
    choices, caseless = pieces(core)
    best = max((choice[0] for choice in choices if len(choice) == 1), key=len, default=b"")
    return escaped(best) if len(best) >= PIECE_MIN and not caseless else ""


def compile_database(catalogue: Catalogue) -> bytes:
    """The databases as bytes that `Matcher` takes.

    Raises:
        ValueError: Hyperscan refuses an expression; the rule's id, file and line are named.
    """
    texts, owners = expressions(catalogue)
    unnamed = [i for i, rules in enumerate(owners) if all(rule.kind == UNNAMED for rule in rules)]
    progress = [i for i, rules in enumerate(owners) if all(rule.role is Role.PROGRESS for rule in rules)]
    faults = sorted(set(range(len(texts))) - set(unnamed) - set(progress))
    parts = [_compile(texts, chosen, owners) for chosen in (faults, progress, unnamed)]
    examples = "\n".join(line for rule in catalogue.scanned for line in rule.matches).encode()
    passing = sieve_of([texts[i] for i in faults], _ordinary(catalogue), examples)
    finders = number_finders(texts, owners)
    seen = {i: _piece(texts[i]) if i in finders else texts[i] for i in progress}
    parts += [_compile_sieve(passing, alone) for alone in ({}, seen)]
    parts.append(_compile(texts, faults, owners, hyperscan.HS_FLAG_SINGLEMATCH))
    return _head(catalogue.digest) + b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def _ordinary(catalogue: Catalogue) -> bytes:
    """What a healthy job prints: the pieces that point at lines should not stand in it."""
    progress = (line for rule in catalogue.scanned if rule.role is Role.PROGRESS for line in rule.matches)
    return ORDINARY + "\n".join(progress).encode()


def _head(digest: str) -> bytes:
    return f"{digest} {FORM}\n".encode()


def _compile(texts: list[str], chosen: list[int], owners: list[tuple[Rule, ...]], flag: int = 0) -> bytes:
    encoded = [texts[i].encode() for i in chosen]
    try:
        return _compiled([*encoded, _STRIDE_1], [*chosen, SIEVED], [*([flag] * len(encoded)), 0])
    except hyperscan.error as error:
        raise ValueError(f"{_culprit(texts, chosen, owners)}: Hyperscan refuses it: {error}") from error


def _compile_sieve(passing: Sequence[str], progress: Mapping[int, str]) -> bytes:
    encoded = [_STRIDE_2, *(text.encode() for text in passing), *(text.encode() for text in progress.values())]
    numbers = [*range(SIEVED, SIEVED + len(passing) + 1), *progress]
    flags = [0] * (len(passing) + 1) + [hyperscan.HS_FLAG_SINGLEMATCH] * len(progress)
    return _compiled(encoded, numbers, flags)


def _compiled(encoded: list[bytes], numbers: list[int], flags: list[int]) -> bytes:
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    database.compile(expressions=encoded, ids=numbers, flags=flags)
    return bytes(hyperscan.dumpb(database))


def _culprit(texts: list[str], chosen: list[int], owners: list[tuple[Rule, ...]]) -> str:
    found = ((texts[i], owners[i][0]) for i in chosen if refusal(texts[i]))
    return next((_named(core, rule) for core, rule in found), "the catalogue as a whole")


def _named(core: str, rule: Rule) -> str:
    return f'{rule.file}:{rule.at_line}: rule "{rule.id}", core {core}'


def refusal(core: str) -> str:
    """Why Hyperscan refuses this expression; empty: it does not."""
    try:
        hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK).compile(expressions=[core.encode()], ids=[0], flags=[0])
    except hyperscan.error as error:
        return str(error)
    return ""


def check_cores(rules: Iterable[Rule]) -> None:
    """Return when Hyperscan takes each core of these rules. Raises ValueError as `compile_database` does."""
    for rule in rules:
        for core in rule.cores:
            if why := refusal(core):
                raise ValueError(f"{_named(core, rule)}: Hyperscan refuses it: {why}")


def load(data: bytes, digest: str) -> Databases:
    """The databases from their bytes.

    Raises:
        ValueError: they are of another catalogue, library version or processor.
    """
    place = len(_head(digest))
    if data[:place] != _head(digest):
        raise ValueError("the compiled database is of another catalogue")
    loaded: list[hyperscan.Database] = []
    try:
        for _ in Databases.__struct_fields__:
            size = int.from_bytes(data[place : place + 8], "little")
            database = hyperscan.loadb(data[place + 8 : place + 8 + size], mode=hyperscan.HS_MODE_BLOCK)
            database.scratch = hyperscan.Scratch(database)
            loaded.append(database)
            place += 8 + size
    except (hyperscan.error, ValueError) as error:
        raise ValueError(f"the compiled database does not fit this machine: {error}") from error
    return Databases(*loaded)


def hits(database: hyperscan.Database, block: bytes | memoryview) -> dict[int, list[int]]:
    """Expression number -> ends of its matches in rising order, for everything that Hyperscan sees."""
    found: dict[int, list[int]] = defaultdict(list)

    def on_match(expression: int, _start: int, end: int, _flags: int, _context: object) -> None:
        found[expression].append(end)

    # The binding takes any buffer; its annotation says less.
    database.scan(block, match_event_handler=on_match)  # type: ignore[type-var]
    found.pop(SIEVED, None)
    return found


def all_hits(databases: Databases, block: bytes | memoryview) -> dict[int, list[int]]:
    """As `hits`, with every core."""
    return hits(databases.faults, block) | hits(databases.progress, block) | hits(databases.unnamed, block)
