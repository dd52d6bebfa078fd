"""What judges inside an allocation: engine and controller, for `launch`, which stands beside them and not above.

Made by `cli.run` and its quick entry. Everything is loaded on first use, because ranks start before it is needed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.controller import Controller
    from holdfast.model.policy import Policy, PolicySet
    from holdfast.ports import Journal, Notifier, Orchestrator


class Judgement:
    """A `launch.allocation.Judge`.

    Args:
        policy_file: the site's policy; empty: none. What is wrong with it is said here, before anything starts.
        known: policies and presets' texts that have been read already, in place of a file.

    Raises:
        ConfigError: the policy file says something that is not understood.
    """

    def __init__(self, policy_file: str = "", *, known: tuple[PolicySet, dict[str, str]] | None = None) -> None:
        self._read = known
        self._file = policy_file
        if policy_file:
            self._policies()

    def _policies(self) -> tuple[PolicySet, dict[str, str]]:
        from holdfast.adapters.policy_files import packaged_presets, read_policy  # noqa: PLC0415 - see the module

        if self._read is None:
            presets = packaged_presets()
            self._read = read_policy(Path(self._file) if self._file else None, presets)[0], presets
        return self._read

    def policy_for(self, partition: str, asked: str) -> Policy:
        """See `Judge`. Without a file and a name, the defaults hold, and no preset need be read to know them."""
        from holdfast.model.policy import Policy  # noqa: PLC0415 - see the module

        return self._policies()[0].for_job(partition, asked) if self._read is not None or asked else Policy()

    def controller(
        self, journal: Journal, orchestrator: Orchestrator, notifiers: list[Notifier], holder: str
    ) -> Controller:
        """See `Judge`."""
        from holdfast.adapters.clock import SteadyClock  # noqa: PLC0415 - see the module
        from holdfast.controller import Controller, Settings  # noqa: PLC0415
        from holdfast.wiring.engines import Engines  # noqa: PLC0415

        quiet_logs()
        return Controller(
            journal,
            Engines(*self._policies(), scope="allocation"),
            orchestrator,
            [],
            notifiers,
            SteadyClock(),
            holder=holder,
            scope="allocation",
            settings=Settings(watch=False),
        )


def quiet_logs() -> None:
    """The launcher speaks for itself on stderr; the controller inside it is heard from warnings on."""
    import logging  # noqa: PLC0415 - see the module

    import structlog  # noqa: PLC0415

    renderer = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(
        processors=[structlog.processors.add_log_level, structlog.processors.TimeStamper("%H:%M:%S"), renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )
