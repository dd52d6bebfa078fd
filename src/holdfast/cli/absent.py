"""One sentence for what is not there, with the nearest right name. Called by every view that takes a name. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import NotFoundError
from holdfast.model.toml_lines import nearest


def missing(kind: str, name: str, known: Sequence[str]) -> NotFoundError:
    """`no node "nod07"; did you mean "node07"?`. Numbers and ids have no nearest one worth naming."""
    near = nearest(name, known) if kind == "node" else None
    if near is not None:
        hint = f'; did you mean "{near}"?'
    else:
        hint = f"; `holdfast {kind}s` lists them" if known else f"; there are no {kind}s"
    return NotFoundError(f'no {kind} "{name}"{hint}')
