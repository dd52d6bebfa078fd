"""A parser inside this process, for tests of what the agent does with matches: it judges at once and never dies."""

from __future__ import annotations

from holdfast.adapters.clock import SystemClock
from holdfast.agent.parser import ParserProcess
from holdfast.agent.parsing import Judge
from holdfast.detect.matcher import Matcher


class ParserInside(ParserProcess):
    """Takes the place of `ParserProcess`: the same questions and answers, without the process."""

    def __init__(self, matcher: Matcher) -> None:
        super().__init__(matcher.catalogue, SystemClock())
        self.why = ""
        self._judge = Judge(matcher)

    def take(self, stream, fed) -> None:
        """Judged before this returns."""
        super().take(stream, fed)
        while (ask := self._next()).parts:
            self._answered(self._judge.answer(ask))

    async def run(self) -> None:
        """There is nothing to run."""
