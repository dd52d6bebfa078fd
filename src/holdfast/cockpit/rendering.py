"""Templates into pages: one environment, filters for times, states and links, and rendering a page's parts alone.

A page's template has blocks named `part_NAME`; the whole page is made of them, and `live.py` has single ones made anew.
They must not depend on who looks. Everything from outside is escaped by Jinja. Called by `pages.py` and `routes.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

from holdfast.controller.fleet import NodeLine
from holdfast.model.orders import AnyOrder
from holdfast.model.wire import kind_of
from holdfast.report.tables import percent, seconds, utc

PART = "part_"
LETTERS = {
    "healthy": "", "suspect": "?", "quarantined": "Q", "draining": "D", "repairing": "R", "validating": "V",
    "retired": "X", "unknown": "U", "unheard": "N",
}  # fmt: skip
"""On a node's cell: colour only repeats what the letter says."""
TONES = {
    "healthy": "good", "watching": "good", "completed": "good", "recovered": "good", "done": "good", "act": "good",
    "running": "good", "observed": "quiet", "cancelled": "quiet", "expired": "quiet", "withdrawn": "quiet",
    "suspect": "warn", "proposed": "warn", "open": "warn", "advise": "warn", "unknown": "odd", "observe": "warn",
    "unheard": "odd",
    "quarantined": "bad", "retired": "bad", "given_up": "bad", "failed": "bad", "rejected": "bad",
}  # fmt: skip


def path(*parts: object) -> str:
    """`/nodes/n%2F1`: an address within the cockpit."""
    return "/" + "/".join(quote(str(part), safe="") for part in parts)


def age(at: float, now: float) -> str:
    """How long ago a moment was, in one unit, as `times.js` writes it: `40 s`, `12 min`, `5 h`, `3 d`."""
    seconds_ago = max(0.0, now - at)
    for most, unit, word in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds_ago < most:
            return f"{seconds_ago // unit:.0f} {word}"
    return f"{seconds_ago // 86400:.0f} d"


def show_time(at: float, style: str = "clock", now: float | None = None) -> Markup:
    """A moment: UTC on the page as it comes, the viewer's zone (or its age) once the script has seen it.

    Args:
        at: Unix seconds; 0 is not known.
        style: `clock`, `full`, or `age`.
        now: the controller's time, for an age that is right without the script, too.
    """
    if not at:
        return Markup("<span>-</span>")
    moment = datetime.fromtimestamp(at, UTC)
    text = moment.strftime("%H:%M:%S UTC") if style == "clock" else moment.strftime("%Y-%m-%d %H:%M:%S UTC")
    if style == "age" and now is not None:
        text = f"{age(at, now)} ago"
    return Markup('<time datetime="{}" data-at="{:.3f}" data-style="{}" title="{}">{}</time>').format(
        moment.isoformat(), at, style, utc(at), text
    )


def show_state(word: object, label: str = "") -> Markup:
    """A state in its own word, with a tone and a mark."""
    text = str(word)
    return Markup('<span class="state {}">{}</span>').format(TONES.get(text, "busy"), label or text.replace("_", " "))


def _link(kind: str, name: object, text: object = "") -> Markup:
    return Markup('<a href="{}">{}</a>').format(path(kind, name), text or name)


def links(names: Iterable[object], kind: str, most: int = 8) -> Markup:
    """Several links in a row, bounded."""
    shown = list(names)
    made = Markup(", ").join(_link(kind, name) for name in shown[:most])
    return made + (escape(f" and {len(shown) - most} more") if len(shown) > most else "") if shown else Markup("-")


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("holdfast.cockpit"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        age=age,
        time=show_time,
        state=show_state,
        seconds=seconds,
        percent=percent,
        links=links,
        kind=_kind,
        page=_with_page,
    )
    environment.globals.update(path=path, letters=LETTERS, link=_link, cells=_cells)
    # Macros stand among the globals, because a part that is rendered alone runs no import of its template.
    environment.globals["job_commands"] = _job_commands
    for name in ("lists", "evidence", "deeds"):
        environment.globals[name] = environment.get_template(f"{name}.html").module
    return environment


COMMANDS = {
    "hold": ("Hold", ""),
    "release": ("Release", ""),
    "evacuate": ("Save and move", ""),
    "requeue": ("Requeue", ""),
    "give_up": ("Give up", "danger"),
}


def _job_commands(names: Iterable[str]) -> list[tuple[str, str, str]]:
    return [(name, *COMMANDS[name]) for name in names]


def _kind(order: AnyOrder) -> str:
    return kind_of(order).replace("_", " ")


def _with_page(address: str, number: int) -> str:
    """The same list, another page of it."""
    base, _, query = address.partition("?")
    kept = [(name, value) for name, value in parse_qsl(query) if name != "page"]
    return f"{base}?{urlencode([*kept, ('page', number)])}"


def cell(line: NodeLine) -> tuple[str, str]:
    """(state, label) of a node in the grid."""
    note = f" ({line.note})" if line.note else ""
    return line.shown, f"{line.name}: {line.shown}{note}"


@lru_cache(maxsize=20_000)
def _grid_cell(line: NodeLine) -> Markup:
    """A node's cell of the grid; of thousands only those that changed are made anew."""
    word, label = cell(line)
    return Markup('<a href="{}" class="c {}" title="{}">{}</a>').format(
        path("nodes", line.name), word, label, LETTERS[word]
    )


def _cells(lines: Iterable[NodeLine]) -> Markup:
    return Markup("").join(_grid_cell(line) for line in lines)


ENVIRONMENT = _environment()


def whole(template: str, values: dict[str, Any]) -> str:
    """The page."""
    return ENVIRONMENT.get_template(template).render(values)


def parts(template: str, values: dict[str, Any]) -> dict[str, str]:
    """Its parts alone, by name."""
    made = ENVIRONMENT.get_template(template)
    context = made.new_context(values)
    return {
        name.removeprefix(PART): "".join(block(context)) for name, block in made.blocks.items() if name.startswith(PART)
    }
