"""Every error that Holdfast raises on purpose, in one tree.

::

    HoldfastError
    ├── UserError                 the person can mend it; printed as one sentence, no traceback
    │   ├── ConfigError           a wrong key, type or value in a TOML file; names file, line, nearest key
    │   ├── UsageError            arguments that do not fit together
    │   ├── NotFoundError         no such job, node, incident, drill, file
    │   │   └── NoInputError      no such log, or none that can be read
    │   ├── StaleError            what the person looked at has changed since: look again
    │   ├── FolderError           a job's folder cannot be used: full, read-only, gone
    │   └── RefusedError          not allowed here: role, ownership, a target not open to drills
    ├── WireError                 bytes that are not what the wire format says
    │   └── VersionError          written by a newer version in a way that cannot be read
    ├── JournalError              the store of events
    │   ├── FencedError           another controller holds a newer epoch; this one must stop
    │   ├── JournalBusyError      the lease is held by a live controller
    │   └── JournalDamagedError   the file is not a journal or is torn beyond repair
    ├── EngineError               the core was asked something impossible (a bug: carries its story)
    │   ├── InvalidTransition     no such line in the transition table
    │   └── InvariantViolated     checked after every event in tests and simulation
    ├── OrderError                an order could not be carried out
    │   ├── TemporaryOrderError   try again: time-out, transient scheduler error
    │   └── PermanentOrderError   do not try again: refused, gone, no capacity, no permission
    └── LinkError                 the other side (controller, leader, agent) is not reachable

Adapters alone catch foreign exceptions and map them here. `exit_code` is what the command line returns.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_FAILED = 1
"""What was asked ran and its answer is "no": a drill failed, an incident is open."""
EXIT_USAGE = 2
EXIT_NOTHING_TO_JUDGE = 65
"""sysexits.h EX_DATAERR: `holdfast explain` recognised nothing in what it read."""
EXIT_NO_INPUT = 66
"""sysexits.h EX_NOINPUT: `holdfast explain` has no such file, or cannot read any."""
EXIT_UNAVAILABLE = 69
"""sysexits.h EX_UNAVAILABLE: no controller or cluster is reachable."""
EXIT_INTERNAL = 70
"""sysexits.h EX_SOFTWARE."""
EXIT_REFUSED = 77
"""sysexits.h EX_NOPERM."""
EXIT_CONFIG = 78
"""sysexits.h EX_CONFIG."""
EXIT_RESTART_ME = 85
"""A job that saved and stopped because it was asked to: restart it, nothing is wrong with it."""
EXIT_DO_NOT_REQUEUE = 86
"""The launcher gave up for a reason that a requeue would not mend (crash loop, application error)."""


class HoldfastError(Exception):
    """Base of all errors raised on purpose."""

    exit_code = EXIT_INTERNAL


class UserError(HoldfastError):
    """The person can mend it; the message is one sentence that names the place and the fix."""

    exit_code = EXIT_USAGE


class ConfigError(UserError):
    """A file says something that Holdfast does not understand.

    Attributes:
        file: the file's path as the person gave it.
        line: 1-based line, 0 when it is not known.
    """

    exit_code = EXIT_CONFIG

    def __init__(self, message: str, *, file: str = "", line: int = 0) -> None:
        place = f"{file}:{line}: " if file and line else f"{file}: " if file else ""
        super().__init__(f"{place}{message}")
        self.file = file
        self.line = line


class UsageError(UserError):
    """Arguments that do not fit together."""


class NotFoundError(UserError):
    """No such job, node, incident, drill or file."""

    exit_code = EXIT_FAILED


class NoInputError(NotFoundError):
    """No such log, or none that can be read."""

    exit_code = EXIT_NO_INPUT


class RefusedError(UserError):
    """Not allowed: role, ownership, or a target that is not marked as open to drills."""

    exit_code = EXIT_REFUSED


class StaleError(UserError):
    """What the person looked at has changed since; nothing was done."""

    exit_code = EXIT_FAILED


class FolderError(UserError):
    """A job's folder cannot be used: full, read-only, gone. A requeue would meet the same."""

    exit_code = EXIT_DO_NOT_REQUEUE


class WireError(HoldfastError):
    """Bytes that do not decode; the message names the field and what was expected."""


class VersionError(WireError):
    """Written by a newer version whose form cannot be read here."""


class JournalError(HoldfastError):
    """The store of events failed."""


class FencedError(JournalError):
    """A newer epoch exists: this controller has lost its lease and must stop at once."""


class JournalBusyError(JournalError):
    """A live controller holds the lease."""

    exit_code = EXIT_UNAVAILABLE


class JournalDamagedError(JournalError):
    """Not a journal, or torn beyond what recovery can mend."""


class EngineError(HoldfastError):
    """The pure core was asked something impossible. Carries the story that led here."""

    def __init__(self, message: str, *, story: tuple[str, ...] = ()) -> None:
        super().__init__(message if not story else message + "\n  " + "\n  ".join(story))
        self.story = story


class InvalidTransition(EngineError):  # noqa: N818 - the name the field knows it by
    """No line of the transition table fits."""


class InvariantViolated(EngineError):  # noqa: N818 - as above
    """A property that must always hold does not."""


class OrderError(HoldfastError):
    """An order could not be carried out."""


class TemporaryOrderError(OrderError):
    """Worth another try after `retry_after_s` seconds."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class PermanentOrderError(OrderError):
    """No further try will help."""


class LinkError(HoldfastError):
    """The other side cannot be reached."""

    exit_code = EXIT_UNAVAILABLE
