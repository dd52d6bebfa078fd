"""nv-one-logger: an exporter that turns its spans into telemetry, for programs that are instrumented with it (NeMo).

    TrainingTelemetryProvider.instance().with_exporter(HoldfastExporter())

Called by one-logger in the training thread. Spans of single iterations are left out by its default; then steps are
taken from its periodic metrics. With a shorter list of what is left out, such as
`.with_export_customization(ExportCustomizationMode.BLACKLIST_SPANS, [StandardTrainingJobSpanName.DATA_LOADING])`, each
step is told as it begins and ends.
"""

from __future__ import annotations

from typing import Any

from nv_one_logger.core.event import Event
from nv_one_logger.core.span import Span
from nv_one_logger.exporter.exporter import BaseExporter
from overrides import override

from holdfast import telemetry

__all__ = ["HoldfastExporter"]

PHASE_OF_SPAN = {
    "distributed_code_initialization": "init",
    "model_initialization": "init",
    "optimizer_initialization": "init",
    "data_loader_initialization": "init",
    "checkpoint_load": "load",
    "validation_loop": "eval",
    "testing_loop": "eval",
    "checkpoint_save_sync": "checkpoint",
    "checkpoint_save_async": "checkpoint",
}
"""Phase that holds while a span is open."""
LOOP, ITERATION = "training_loop", "training_single_iteration"
SAVED, METRICS = "save_checkpoint_success", "training_metrics_update"


class HoldfastExporter(BaseExporter):
    """Give it to `with_exporter`; nothing else is needed."""

    def __init__(self) -> None:
        super().__init__()
        self._completed = 0
        self._open: list[Any] = []
        self._has_iterations = False

    @override
    def export_start(self, span: Span) -> None:
        """A span has begun."""
        super().export_start(span)
        name = _name(span)
        if name == LOOP:
            self._completed = _number(span.attributes, "train_iterations_start") or 0
        elif name == ITERATION:
            self._has_iterations = True
            telemetry.step_begin(self._completed + 1)
        elif name in PHASE_OF_SPAN:
            phase = telemetry.phase(PHASE_OF_SPAN[name])
            phase.__enter__()
            self._open.append((span.id, phase))

    @override
    def export_stop(self, span: Span) -> None:
        """A span has ended."""
        super().export_stop(span)
        name = _name(span)
        if name == ITERATION:
            self._completed += 1
            telemetry.step_end(self._completed)
        elif name == LOOP:
            telemetry.set_phase("shutdown")
        elif self._open and self._open[-1][0] == span.id:
            self._open.pop()[1].__exit__(None, None, None)

    @override
    def export_event(self, event: Event, span: Span) -> None:
        """Something happened within a span."""
        super().export_event(event, span)
        name = str(getattr(event.name, "value", event.name))
        step = _number(event.attributes, "current_iteration")
        if step is None:
            return
        if name == SAVED:
            telemetry.checkpoint(step, durable=True)
        elif name == METRICS and not self._has_iterations:
            self._completed = step
            telemetry.step_end(step)


def _name(span: Span) -> str:
    return str(getattr(span.name, "value", span.name))


def _number(attributes: Any, name: str) -> int | None:
    found = attributes.get(name) if attributes is not None else None
    value = getattr(found, "value", None)
    return int(value) if isinstance(value, int | float) else None
