"""Policy files on disk: the presets that ship with Holdfast, and a site's own. `model/policy_toml.py` reads the text.

Called once by `holdfast controller`, `run` and `policy` when they start, and by the controller on SIGHUP.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from holdfast.errors import ConfigError
from holdfast.model.policy import PolicySet
from holdfast.model.policy_toml import parse_policy


def packaged_presets() -> dict[str, str]:
    """Texts of the presets, by name."""
    folder = resources.files("holdfast") / "presets"
    if not folder.is_dir():
        return {}
    files = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".toml")), key=lambda entry: entry.name)
    return {entry.name.removesuffix(".toml"): entry.read_text(encoding="utf-8") for entry in files}


def read_policy(path: Path | None, presets: dict[str, str]) -> tuple[PolicySet, str]:
    """A site's policy and its text; without a file, the defaults and an empty text.

    Raises:
        ConfigError: the file cannot be read, or says something that is not understood; every wrong key is named.
    """
    if path is None:
        return parse_policy("", "", presets), ""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"is not UTF-8 text (byte {error.start})", file=str(path)) from error
    except OSError as error:
        raise ConfigError(f"the policy cannot be read: {error.strerror}", file=str(path)) from error
    return parse_policy(text, str(path), presets), text
