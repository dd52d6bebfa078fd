"""The matcher of ranks' output, loaded in a thread once the first ranks run: a restart must not wait for it.

Made by `program`, told to `begin` by the node runner when it has started ranks, asked by whoever reads output. What
ranks print meanwhile stands in their log files and is read when the matcher is there. No time passes here.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the matcher's own modules are a good part of what the thread loads
    from holdfast.detect.matcher import Matcher


class LateMatcher:
    """A matcher that is there a little later."""

    def __init__(self, load: Callable[[], Matcher]) -> None:
        self._load = load
        self._loading: Future[Matcher] | None = None

    def begin(self) -> Future[Matcher]:
        """Load it in a thread; a second call changes nothing."""
        if self._loading is None:
            pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="holdfast-matcher")
            self._loading = pool.submit(self._load)
            pool.shutdown(wait=False)
        return self._loading

    @property
    def is_ready(self) -> bool:
        """`get` returns at once."""
        return self._loading is not None and self._loading.done()

    def get(self) -> Matcher:
        """The matcher, waiting for it if need be. Raises what loading it raised (ConfigError)."""
        return self.begin().result()
