"""Reads HyperPod's log rules from where people have them: a job's manifest, or a file of their own.

YAML, JSON or TOML. The list may stand alone, below `logMonitoringConfiguration`, or anywhere in a manifest (a
HyperPodPyTorchJob holds it in `spec.runPolicy`). Called once by `holdfast run` and `holdfast explain`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from holdfast.detect.hyperpod_rules import LogRule, log_rules
from holdfast.errors import ConfigError
from holdfast.os.files import read_bounded

KEY = "logMonitoringConfiguration"
FILE_MAX = 1 << 20


def read_log_rules(path: str | Path) -> tuple[LogRule, ...]:
    """The rules in this file, checked.

    Raises:
        ConfigError: the file cannot be read or parsed, holds no rules, or one of them is wrong.
    """
    try:
        text = read_bounded(Path(path), FILE_MAX).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"the log rules cannot be read: {why}", file=str(path)) from error
    documents = _parse(text, str(path))
    found = next((entries for document in documents if (entries := _entries(document)) is not None), None)
    if found is None:
        raise ConfigError(f"holds no {KEY} (a list of rules, each with name and logPattern)", file=str(path))
    wrong = next((entry for entry in found if not isinstance(entry, Mapping)), None)
    if wrong is not None:
        raise ConfigError(f"{KEY}: {wrong!r} is not a rule (a mapping with name and logPattern)", file=str(path))
    return log_rules(found, file=str(path))


def _parse(text: str, file: str) -> list[Any]:
    try:
        if file.endswith(".toml"):
            return [tomllib.loads(text)]
        return list(yaml.safe_load_all(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"is not TOML: {error}", file=file) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else 0
        raise ConfigError(f"is not YAML: {getattr(error, 'problem', error)}", file=file, line=line) from error


def _entries(document: Any, depth: int = 0) -> list[Any] | None:
    """The list of rules: the document itself, or what stands below the key, wherever that is."""
    if isinstance(document, list) and not depth:
        return document
    if not isinstance(document, Mapping) or depth > 6:
        return None
    if isinstance(document.get(KEY), list):
        return list(document[KEY])
    return next((found for value in document.values() if (found := _entries(value, depth + 1)) is not None), None)
