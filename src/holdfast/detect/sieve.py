"""Which short byte strings point at the lines that are worth the whole catalogue's search.

Fifteen hundred expressions cost more at each byte than their matches do, because short pieces ("port ", "error") make
the search stop at ordinary words. A sieve is a set of pieces of five to eight bytes, as few and as unlike ordinary
text as cover all cores, none of them usual in the output of a healthy job. A line without any holds no match of any
core; only the others are searched with the cores themselves (`search`). Pure; called when a catalogue is compiled.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from holdfast.detect.literals import pieces, worth

LENGTHS = (8, 7, 6, 5)
"""Of the pieces."""
BITS_WANTED, BITS_LIKE_ONE_PIECE = 36.0, 8.0
"""A piece that says less than so many bits costs more: as much as one more piece for each eight that it lacks."""
LENGTH_MIN = 6
"""A core with shorter pieces only is looked for whole: its pieces would point at too many lines."""
WORDINGS_MAX = 24
"""A core that needs more pieces than this is looked for whole."""
ORDINARY = b"""
 grad norm: 0.512 | grad norm: 1.412 | valid loss at iteration | loss scale: 1.0 | global batch size:
 number of skipped iterations:   0 | number of nan iterations:   0 |
 (min, max) time across ranks (ms): forward-backward ....: (123.10, 131.02) optimizer ....: (3.20, 3.31)
 'grad_norm': 1.4142, 'grad_norm': 2.1, 'grad_norm': 3.2, 'grad_norm': 4.3, 'learning_rate': 5e-05,
 grad_norm=0.61 grad_norm: 12.5 train_loss: 2.31, val_loss: 2.62, eval_loss: 2.61, perplexity, accuracy,
 time (ms) | batch-generator: 1.20 | prompt tokens, generated tokens, decoded tokens, completion tokens
 INFO loading the model and the tokenizer; building the training set; memory allocated, reserved: 61.2 GB
 starting training, number of parameters, trainable parameters, learning rate, throughput, validation
 data loader: reading shard, samples, tokens per second, dataset, connection, connected, initialized, device
"""
"""What healthy jobs print all the time, beside the catalogue's examples of progress."""

_Key = tuple[bool, bytes]
"""(case does not matter, the piece)"""


class Surprise:
    """How seldom text like this stops Hyperscan's literal search at a piece for nothing.

    The search looks at every second byte, together with the lower half of the one after it, so a piece is only as good
    as the weaker of its two ways of being cut into such pairs.
    """

    def __init__(self, text: bytes) -> None:
        pairs = Counter(zip(text, (byte & 15 for byte in text[1:]), strict=False))
        self._pairs = [[_bits(pairs[byte, low], len(text), 4096) for low in range(16)] for byte in range(256)]
        singles = Counter(text)
        self._singles = [_bits(singles[byte], len(text), 256) for byte in range(256)]

    def bits(self, piece: bytes) -> float:
        """Of the piece; a greater number is a rarer piece."""
        ways = [0.0, 0.0]
        for i in range(len(piece) - 1):
            ways[i & 1] += self._pairs[piece[i]][piece[i + 1] & 15]
        ways[(len(piece) - 1) & 1] += self._singles[piece[-1]]
        return min(ways)

    def cost(self, piece: bytes) -> float:
        """What the piece costs the search, in pieces of the best kind."""
        return 1.0 + max(0.0, BITS_WANTED - self.bits(piece)) / BITS_LIKE_ONE_PIECE


def _bits(seen: int, size: int, kinds: int) -> float:
    return -math.log2((seen + 0.5) / (size + kinds / 2))


def sieve_of(cores: Iterable[str], ordinary: bytes = ORDINARY, language: bytes = b"") -> list[str]:
    """Hyperscan expressions of which every line with a match of one of these cores holds one.

    Args:
        cores: Hyperscan expressions.
        ordinary: text in which the chosen pieces should not occur.
        language: more text, by which it is judged how usual letters and their pairs are.
    """
    whole: dict[str, None] = {}
    wanted: dict[tuple[bool, tuple[bytes, ...]], str] = {}
    for core in cores:
        choices, caseless = pieces(core)
        best = max(choices, key=worth, default=())
        if not best or min(map(len, best)) < LENGTH_MIN or len(best) > WORDINGS_MAX:
            whole[core] = None
            continue
        single = tuple(choice[0] for choice in choices if len(choice) == 1 and len(choice[0]) >= LENGTHS[0])
        for texts in [single] if single else [(text,) for text in best]:
            wanted.setdefault((caseless, texts), core)
    chosen = _cover(list(wanted.items()), ordinary, Surprise(ordinary + language), whole)
    return [("(?i)" if caseless else "") + escaped(text) for caseless, text in chosen] + list(whole)


def _cover(
    elements: Sequence[tuple[tuple[bool, tuple[bytes, ...]], str]],
    ordinary: bytes,
    surprise: Surprise,
    whole: dict[str, None],
) -> list[_Key]:
    """Few pieces of which every element holds one; an element that only ordinary pieces cover goes into `whole`."""
    covers = _candidates([key for key, _ in elements])
    lowered = ordinary.lower()
    usual = {key for key in covers if key[1] in (lowered if key[0] else ordinary)}
    left = set(range(len(elements)))
    reachable: set[int] = set().union(*(found for key, found in covers.items() if key not in usual))
    for index in sorted(left - reachable):
        whole[elements[index][1]] = None
    left &= reachable
    cost = {key: surprise.cost(key[1]) for key in covers if key not in usual}
    heap = [(-len(covers[key]) / cost[key], key) for key in cost]
    heapq.heapify(heap)
    chosen: list[_Key] = []
    while left:
        promised, key = heapq.heappop(heap)
        gained = len(covers[key] & left) / cost[key]
        if gained and -gained > promised:
            heapq.heappush(heap, (-gained, key))
        elif gained:
            chosen.append(key)
            left -= covers[key]
    return chosen


def _candidates(elements: Sequence[tuple[bool, tuple[bytes, ...]]]) -> dict[_Key, set[int]]:
    """Piece -> the elements that cannot be there without it."""
    covers: defaultdict[_Key, set[int]] = defaultdict(set)
    for index, (caseless, texts) in enumerate(elements):
        for text in texts:
            shown = text.lower() if caseless else text
            for length in {min(length, len(shown)) for length in LENGTHS}:
                for start in range(len(shown) - length + 1):
                    covers[caseless, shown[start : start + length]].add(index)
    exact: defaultdict[bytes, set[int]] = defaultdict(set)
    for (caseless, text), found in covers.items():
        if not caseless:
            exact[text.lower()] |= found
    for caseless, text in covers:
        if caseless and text in exact:
            covers[caseless, text] |= exact[text]
    return dict(covers)


def escaped(text: bytes) -> str:
    """The Hyperscan expression for exactly these bytes."""
    return "".join(chr(c) if chr(c).isalnum() and c < 128 else f"\\x{c:02x}" for c in text)
