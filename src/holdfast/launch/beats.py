"""Beats of the leader, with the samples that go along: to its own controller, and to the cluster's. No time passes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from holdfast.launch.place import JobPlace
from holdfast.model.wire import Beat, SamplePoint
from holdfast.ports import Sample

_KEPT_MAX = 20_000
_PER_BEAT_MAX = 2_000


class Beats:
    """Makes beats. Samples wait for each of the two listeners; while one is away, the oldest are dropped."""

    def __init__(self, place: JobPlace) -> None:
        self._place = place
        self._own: deque[SamplePoint] = deque(maxlen=_KEPT_MAX)
        self._cluster: deque[SamplePoint] = deque(maxlen=_KEPT_MAX)

    def add(self, samples: Iterable[Sample]) -> None:
        """Points since the last call."""
        for sample in samples:
            point = SamplePoint(sample.series, sample.subject, sample.at, sample.value)
            self._own.append(point)
            self._cluster.append(point)

    def for_own_controller(self, at: float) -> Beat:
        """A beat for the allocation's controller."""
        return self._beat(self._own, at)

    def for_cluster(self, at: float) -> Beat:
        """A beat for the cluster's controller; its samples are gone with it, delivered or not."""
        return self._beat(self._cluster, at)

    def _beat(self, waiting: deque[SamplePoint], at: float) -> Beat:
        key = self._place.job
        return Beat(
            source=self._place.source,
            node=self._place.node,
            cluster=key.cluster,
            job=key.id,
            generation=key.generation,
            at=at,
            samples=[waiting.popleft() for _ in range(min(len(waiting), _PER_BEAT_MAX))],
        )
