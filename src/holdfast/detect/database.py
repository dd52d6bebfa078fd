"""The compiled Hyperscan databases of a catalogue: made once, kept as bytes, run over blocks of text.

Called by `Matcher`; `adapters/catalogue_files` keeps the bytes on disk. There are two databases: one with every rule
and one without progress rules, for blocks in which progress is not read (a stream with sampled progress).
Block mode is used: it is faster than streaming mode, and lines give natural ends to a block.
"""

from __future__ import annotations

from collections import defaultdict

import hyperscan

from holdfast.detect.catalogue import UNNAMED, Catalogue, Rule
from holdfast.model.evidence import Role

FORM = 2
"""Of the bytes that `compile_database` makes; older ones are compiled anew."""


def expressions(catalogue: Catalogue) -> tuple[list[str], list[tuple[Rule, ...]]]:
    """Distinct cores, and the rules that each one points at."""
    owners: dict[str, list[Rule]] = {}
    for rule in catalogue.scanned:
        for text in rule.cores:
            owners.setdefault(text, []).append(rule)
    return list(owners), [tuple(rules) for rules in owners.values()]


def compile_database(catalogue: Catalogue) -> bytes:
    """The databases as bytes that `Matcher` takes.

    Raises:
        ValueError: Hyperscan refuses an expression; the rule's id, file and line are named.
    """
    texts, owners = expressions(catalogue)
    everything = list(range(len(texts)))
    named = [i for i in everything if any(rule.kind != UNNAMED for rule in owners[i])]
    faults = [i for i in named if any(rule.role is not Role.PROGRESS for rule in owners[i])]
    parts = [_compile(texts, chosen, owners) for chosen in (named, faults, everything)]
    return _head(catalogue.digest) + b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def _head(digest: str) -> bytes:
    return f"{digest} {FORM}\n".encode()


def _compile(texts: list[str], chosen: list[int], owners: list[tuple[Rule, ...]]) -> bytes:
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    encoded = [texts[i].encode() for i in chosen]
    if not encoded:
        encoded, chosen = [rb"\x00\x01\x02holdfast: no rules\x02\x01\x00"], [0]
    try:
        database.compile(expressions=encoded, ids=chosen, flags=[0] * len(encoded))
    except hyperscan.error as error:
        raise ValueError(f"{_culprit(texts, chosen, owners)}: Hyperscan refuses it: {error}") from error
    return bytes(hyperscan.dumpb(database))


def _culprit(texts: list[str], chosen: list[int], owners: list[tuple[Rule, ...]]) -> str:
    for i in chosen:
        try:
            hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK).compile(
                expressions=[texts[i].encode()], ids=[i], flags=[0]
            )
        except hyperscan.error:
            rule = owners[i][0]
            return f'{rule.file}:{rule.at_line}: rule "{rule.id}", core {texts[i]}'
    return "the catalogue as a whole"


def load(data: bytes, digest: str) -> tuple[hyperscan.Database, hyperscan.Database, hyperscan.Database]:
    """The databases from their bytes: (all that has a name, the same but progress, everything).

    Raises:
        ValueError: they are of another catalogue, library version or processor.
    """
    place = len(_head(digest))
    if data[:place] != _head(digest):
        raise ValueError("the compiled database is of another catalogue")
    parts: list[bytes] = []
    for _ in range(3):
        size = int.from_bytes(data[place : place + 8], "little")
        parts.append(data[place + 8 : place + 8 + size])
        place += 8 + size
    try:
        databases = tuple(hyperscan.loadb(part, mode=hyperscan.HS_MODE_BLOCK) for part in parts)
        for database in databases:
            database.scratch = hyperscan.Scratch(database)
    except (hyperscan.error, ValueError) as error:
        raise ValueError(f"the compiled database does not fit this machine: {error}") from error
    return databases[0], databases[1], databases[2]


def hits(database: hyperscan.Database, block: bytes | memoryview) -> dict[int, list[int]]:
    """Expression number -> ends of its matches in rising order, for everything that Hyperscan sees."""
    found: dict[int, list[int]] = defaultdict(list)

    def on_match(expression: int, _start: int, end: int, _flags: int, _context: object) -> None:
        found[expression].append(end)

    # The binding takes any buffer; its annotation says less.
    database.scan(block, match_event_handler=on_match)  # type: ignore[type-var]
    return found
