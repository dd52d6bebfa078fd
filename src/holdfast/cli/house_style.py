"""In which language and zone, and by whose templates, this site reads: options over `[report]` of holdfast.toml.

Called by `report` and `incident`.
"""

from __future__ import annotations

from pathlib import Path
from zoneinfo import available_timezones

from holdfast.errors import UsageError
from holdfast.model.toml_lines import nearest
from holdfast.report.words import LANGUAGES, Words
from holdfast.wiring.settings import load_settings


def house_style(zone: str, language: str, templates: Path | None, config: Path | None) -> tuple[Words, Path | None]:
    """Options win over `[report]` of holdfast.toml.

    Raises:
        UsageError: no such zone or language.
        ConfigError: see `config.load_settings`.
    """
    settings = load_settings(config)
    house = settings.config.report
    said_zone, said_language = zone or house.zone or "UTC", language or house.language or "en"
    if said_language not in LANGUAGES:
        raise UsageError(f'--language "{said_language}" is not known here: write {" or ".join(LANGUAGES)}')
    words = Words(said_language, said_zone)
    try:
        words.clock(1.0)
    except (ValueError, OSError, KeyError) as error:
        near = nearest(said_zone, available_timezones())
        hint = f'; did you mean "{near}"?' if near else "; write it like Asia/Tokyo"
        raise UsageError(f'--zone "{said_zone}" is no time zone{hint}') from error
    return words, templates or settings.path(house.templates)
