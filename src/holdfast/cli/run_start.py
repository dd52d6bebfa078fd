"""`holdfast run` from its options on: the site's settings, the launch, and an exit that nobody waits for.

Called by `cli.run`, and by `cli.entry` for a plain command line. Imports what starting ranks takes and no more.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn

from msgspec import structs

from holdfast.launch.options import RunOptions
from holdfast.launch.program import launch
from holdfast.wiring.judgement import Judgement
from holdfast.wiring.settings_places import places

if TYPE_CHECKING:
    from holdfast.wiring.settings import Settings


def begin(options: RunOptions) -> NoReturn:
    """Run to the end and leave this process with the exit code.

    Raises:
        UserError, ConfigError: the options, the settings, the environment or a file is wrong.
    """
    options = _completed(options)
    code = launch(options, os.environ, Judgement(options.policy))
    sys.stdout.flush()
    sys.stderr.flush()
    # Everything is closed by now. Taking the interpreter apart would take some 0.2 s, and a scheduler that stops the
    # job for a requeue waits for this process.
    os._exit(code)


def _completed(options: RunOptions) -> RunOptions:
    """With what holdfast.toml says, where there is one."""
    settings = site_settings()
    if settings is None:
        return options
    log_rules, rules = settings.path(settings.config.log_rules), settings.path(settings.config.rules)
    return structs.replace(
        options,
        log_rules=options.log_rules or (str(log_rules) if log_rules is not None else ""),
        policy=options.policy or site_policy(settings),
        rules=options.rules or ((str(rules),) if rules is not None else ()),
    )


def site_settings() -> Settings | None:
    """What holdfast.toml says here; None where there is none. Raises ConfigError."""
    if not any(path.exists() for path in places()) and not os.environ.get("HOLDFAST_CONFIG"):
        return None
    from holdfast.wiring.settings import load_settings  # noqa: PLC0415 - few nodes have one

    return load_settings()


def site_policy(settings: Settings) -> str:
    """The policy file that holdfast.toml names; empty when it names none, or none that can be read here."""
    policy = settings.path(settings.config.policy)
    if policy is None or os.access(policy, os.R_OK):
        return str(policy or "")
    # On a node of a cluster the controller's policy need not be there, or not for users.
    sys.stderr.write(
        f"holdfast: {policy}, the policy that {settings.file} names, cannot be read here, so the defaults hold "
        "(mode act): make it readable, or name one by --policy\n"
    )
    return ""
