"""What others have published about their fleets, as facts with their source: one's own figures stand beside them."""

from __future__ import annotations

from msgspec import Struct

from holdfast.report.fleet import per_1000_node_days

LLAMA3 = "Llama Team, The Llama 3 Herd of Models, arXiv:2407.21783, section 3.3.4 and table 5"
META_RSC = "A. Kokolis et al., Revisiting Reliability in Large-Scale ML Research Clusters, arXiv:2410.21680"


class PublishedFleet(Struct, frozen=True):
    """One published fleet. Rates per 1000 node-days; None: not published."""

    name: str
    gpus: int
    gpus_per_node: int
    days: float | None
    interruptions: int | None
    """Unexpected ones."""
    per_1000_node_days: float | None
    effective_percent: float | None
    source: str

    @property
    def rate(self) -> float | None:
        """Failures per 1000 node-days: as published, else from the count."""
        if self.per_1000_node_days is not None:
            return self.per_1000_node_days
        if self.interruptions is None or not self.days:
            return None
        return per_1000_node_days(self.interruptions, self.gpus / self.gpus_per_node * self.days)

    @property
    def mtbf_h(self) -> float | None:
        """Hours between failures of a job on all of it."""
        if self.rate is None:
            return None
        return 24.0 * 1000.0 / (self.rate * self.gpus / self.gpus_per_node)


FLEETS: tuple[PublishedFleet, ...] = (
    PublishedFleet("Llama 3 405B pre-training", 16384, 8, 54.0, 419, None, 90.0, LLAMA3),
    PublishedFleet("Meta RSC-1", 16384, 8, None, None, 6.50, None, META_RSC),
    PublishedFleet("Meta RSC-2", 8192, 8, None, None, 2.34, None, META_RSC),
)
