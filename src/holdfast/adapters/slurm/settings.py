"""`[slurm]` of holdfast.toml. Read by `wiring/settings.py`; the adapter takes it as it is."""

from __future__ import annotations

from msgspec import Struct


class SlurmConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[slurm]`: how this site repairs its machines. A program is run with the node's name as last word."""

    replace_program: tuple[str, ...] = ()
    """Puts another machine in a node's place; ends with 0 when it is on its way."""
    replace_by_reason: bool = False
    """Replacing means writing `Action:Replace` as the node's reason, for whoever acts on it (HyperPod)."""
    reboot_program: tuple[str, ...] = ()
    """Reboots a node in place of `scontrol reboot`, such as a BMC's power cycle."""
    munge: bool = False
    """Munge credentials are taken for tokens by the controller, and shown by commands that name no token."""
    munge_socket: str = ""
    """Where munged listens; default: munge's own."""
    rest: str = ""
    """Where slurmrestd listens: `unix:/path/of/socket` or `https://HOST:PORT`. Looks go there while it answers."""
    rest_token_file: str = ""
    """Holds the token for it, as `scontrol token` prints it, mode 0600; a socket needs none. Read at each look."""
