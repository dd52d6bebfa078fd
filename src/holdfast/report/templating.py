"""Templates of the page and of Markdown: those that ship, or a site's own in their place.

Called by `html` and `markdown`. A site's folder may hold `report.html`, `report.md` or both; what it lacks comes from
here, and `{% extends "shipped/report.html" %}` changes only parts. Site templates run in Jinja's sandbox.
"""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from typing import Any

from jinja2 import (
    BaseLoader,
    ChoiceLoader,
    FileSystemLoader,
    PackageLoader,
    PrefixLoader,
    StrictUndefined,
    TemplateError,
    TemplateSyntaxError,
)
from jinja2.sandbox import SandboxedEnvironment

from holdfast.errors import ConfigError
from holdfast.report.tables import cause, seconds, suspects
from holdfast.report.words import Words

SPECIAL = str.maketrans({c: "\\" + c for c in "\\`*_{}[]<>#|"})


def plain(text: object) -> str:
    """Text from outside as Markdown text: no markup, one line."""
    return " ".join(str(text).translate(SPECIAL).split())


def render(name: str, words: Words, templates: Path | None, **values: Any) -> str:
    """A template with values in it.

    Raises:
        ConfigError: a site's template is broken: its file, its line, what is wrong.
    """
    shipped = PackageLoader("holdfast.report")
    loaders: list[BaseLoader] = [shipped, PrefixLoader({"shipped": shipped})]
    if templates is not None:
        if not templates.is_dir():
            raise ConfigError("there is no such folder of templates", file=str(templates))
        loaders.insert(0, FileSystemLoader(templates))
    environment = SandboxedEnvironment(
        loader=ChoiceLoader(loaders),
        autoescape=name.endswith(".html"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        seconds=seconds,
        time=words.time,
        cause=cause,
        suspects=suspects,
        plain=plain,
        say=words.say,
        tell=words.tell,
        explain=words.explain,
    )
    environment.globals["t"] = words.say
    try:
        return environment.get_template(name).render(words=words, **values)
    except Exception as error:
        # A template calls whatever it likes, so it can fail with anything; a site's own is named, ours is a bug.
        if templates is None:
            raise
        raise _said(error, templates) from error


def _said(error: Exception, templates: Path) -> ConfigError:
    """One sentence: a template can fail with any exception, since it calls what it is given."""
    if isinstance(error, TemplateSyntaxError):
        return ConfigError(error.message or "not valid", file=error.filename or error.name or "", line=error.lineno)
    own = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(str(templates) + os.sep)]
    kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
    words = " ".join(str(error).split())
    if own:
        return ConfigError(f"{kind}{words}", file=own[-1].filename, line=own[-1].lineno or 0)
    return ConfigError(f"{kind}{words}", file=str(templates))
