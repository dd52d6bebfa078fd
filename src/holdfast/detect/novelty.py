"""Lines that healthy attempts of a job never printed, near its failure: the evidence that is left when no rule matches.

A launcher lets one `Novelty` learn what the job prints while it makes progress and asks it about the last lines before
a failure that nothing explains; `holdfast explain` does the same with the earlier part of a log. Lines are reduced to
templates: numbers, addresses, paths and quoted texts are taken out, and lines of the same length that agree in most of
their words are one template (as in the Drain algorithm; He et al., ICWS 2017). Bounded: the templates that were seen
longest ago are forgotten. Pure; no time passes.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from holdfast.detect.lines import take_apart

TEMPLATES_MAX = 4096
PER_BUCKET_MAX = 64
WORDS_MAX = 24
WORD_MAX = 60
AGREE_MIN = 0.6
"""So many of the words must be the same for a line to be of a known template."""

_VARIABLE = re.compile(
    r"""0x[0-9a-fA-F]+ | '[^']*' | "[^"]*" | (?:/[\w.@+-]+){2,}/?
      | \b[0-9a-f]{8,}\b | [-+]?\d[\d.,:eE/+-]*%? | \b(?:nan|inf|True|False|None)\b""",
    re.VERBOSE,
)
_SPLIT = re.compile(r"[\s=|,;()\[\]{}]+")
_TROUBLED = re.compile(
    r"(?i)error|fail|fatal|abort|exception|denied|refused|unable|cannot|could not|invalid"
    r"|corrupt|timed? ?out|lost|kill|panic"
)


def template(text: str) -> tuple[str, ...]:
    """The words of a line that do not change from one print to the next."""
    body = _VARIABLE.sub("#", take_apart(text).body[:400])
    return tuple(word[:WORD_MAX] for word in _SPLIT.split(body) if word)[:WORDS_MAX]


class Novelty:
    """What a job prints when it is well."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[tuple[int, str], list[tuple[str, ...]]] = OrderedDict()
        self._count = 0
        self.learned = 0
        """Templates ever learned: grows with each new one, also when an old one is forgotten for it."""

    def __len__(self) -> int:
        return self._count

    def learn(self, lines: Iterable[str]) -> None:
        """These lines were printed while the job was well."""
        for line in lines:
            if words := template(line):
                self._add(words)

    def templates(self) -> list[list[str]]:
        """All templates, those seen longest ago first: what `restore` takes."""
        return [list(words) for bucket in self._buckets.values() for words in bucket]

    def restore(self, templates: Iterable[Sequence[str]]) -> None:
        """Know these templates too."""
        for words in templates:
            if words:
                self._add(tuple(word[:WORD_MAX] for word in words[:WORDS_MAX]))

    def _add(self, words: tuple[str, ...]) -> None:
        key = (len(words), words[0])
        bucket = self._buckets.setdefault(key, [])
        self._buckets.move_to_end(key)
        if any(_agree(words, known) for known in bucket):
            return
        bucket.append(words)
        self._count += 1
        self.learned += 1
        if len(bucket) > PER_BUCKET_MAX:
            bucket.pop(0)
            self._count -= 1
        while self._count > TEMPLATES_MAX:
            _, forgotten = self._buckets.popitem(last=False)
            self._count -= len(forgotten)

    def is_new(self, line: str) -> bool:
        """Whether no line like this was printed before."""
        words = template(line)
        if not words:
            return False
        return not any(_agree(words, known) for known in self._buckets.get((len(words), words[0]), ()))

    def strangest(self, lines: Sequence[str], count: int = 5) -> list[int]:
        """Positions of new lines, most telling first: those that speak of trouble, then the last ones.

        Args:
            lines: the last lines before the failure, in order.
            count: at most so many.
        """
        seen: set[tuple[str, ...]] = set()
        new: list[int] = []
        for index, line in enumerate(lines):
            words = template(line)
            if words and words not in seen and self.is_new(line):
                seen.add(words)
                new.append(index)
        new.sort(key=lambda index: (not _TROUBLED.search(lines[index]), -index))
        return new[:count]


def _agree(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    same = sum(a == b for a, b in zip(one, other, strict=True))
    return same >= AGREE_MIN * len(one)
