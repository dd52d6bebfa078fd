"""Trends that foretell a fault: a value that heads for its limit. Pure; times come with the values.

The node's checks keep one `Course` for each temperature. A forecast is made only from a steady rise that has come
near its limit: a job that starts makes everything warm, and then it levels off.
"""

from __future__ import annotations

from collections import deque
from statistics import StatisticsError, correlation, linear_regression


class Course:
    """The recent course of one value.

    Args:
        span_s: how far back it looks.
    """

    def __init__(self, span_s: float = 600.0) -> None:
        self._span_s = span_s
        self._points: deque[tuple[float, float]] = deque()

    def add(self, at: float, value: float) -> None:
        """One more value."""
        self._points.append((at, value))
        while self._points[0][0] < at - self._span_s:
            self._points.popleft()

    def reaches_in_s(self, limit: float, *, near: float, points_min: int = 8) -> float | None:
        """Seconds until the value reaches `limit` if it goes on as it did; None when no such thing can be said.

        It can when at least half of the span is known, the value is within `near` of the limit and was within twice
        that all the time (what starts far below is a job that begins), the second half of the points rises as well as
        the first, and the line through them (least squares) explains most of their movement.
        """
        points = self._points
        if len(points) < points_min or points[-1][0] - points[0][0] < self._span_s / 2:
            return None
        value = points[-1][1]
        if value >= limit or limit - value > near or limit - min(one for _, one in points) > 2 * near:
            return None
        slope, fit = _line(list(points))
        later, _ = _line(list(points)[len(points) // 2 :])
        if slope <= 0 or fit < 0.8 or later < slope / 2:
            return None
        return (limit - value) / slope


def _line(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Slope per second and coefficient of determination of the least-squares line."""
    try:
        return linear_regression(*zip(*points, strict=True)).slope, correlation(*zip(*points, strict=True)) ** 2
    except StatisticsError:
        return 0.0, 0.0
