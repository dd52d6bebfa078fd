"""The answers of `holdfast simulate` as one HTML page that opens without a network, and as bars in a terminal.

Called by `cli/simulate.py`. Plotly's packaged script is put inside, as in a report. No time passes here.
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from typing import Any

from holdfast import __version__
from holdfast.report.html import plotly_script
from holdfast.report.plots import BLUE, GREEN, ORANGE, PURPLE, RED, SKY
from holdfast.sim.ledger import CATEGORIES
from holdfast.sim.what_if import Answer

COLOURS = (SKY, PURPLE, "#F0E442", ORANGE, "#999999", "#555555", "#8C564B", RED, BLUE)
"""One for each category, in their order."""
FULL, EIGHTHS = "█", " ▏▎▍▌▋▊▉"


def names_of(answers: Sequence[Answer]) -> list[str]:
    """What tells the cases apart, in a few words each."""
    cases = [answer.case for answer in answers]
    choices = zip(*((case.policy_name, case.checkpoint_s, case.spares) for case in cases), strict=True)
    several = [len(set(chosen)) > 1 for chosen in choices]
    made = []
    for answer in answers:
        parts = [
            answer.case.policy_name,
            f"every {_interval(answer)}",
            f"{answer.case.spares} spare{'' if answer.case.spares == 1 else 's'}",
        ]
        kept = [part for part, differs in zip(parts, several, strict=True) if differs]
        made.append(", ".join(kept or parts[:1]))
    return made


def _interval(answer: Answer) -> str:
    seconds = answer.checkpoint_s
    best = "" if answer.case.checkpoint_s else " (best)"
    return f"{seconds / 60:.3g} min{best}" if seconds >= 120 else f"{seconds:.3g} s{best}"


def bar(share: float, scale: float, width: int) -> str:
    """A horizontal bar of at most `width` cells; `scale` is the share that fills it."""
    eighths = round(8 * width * min(1.0, share / scale)) if scale > 0 else 0
    whole, rest = divmod(eighths, 8)
    return FULL * whole + (EIGHTHS[rest] if rest else "")


def bars(answers: Sequence[Answer], width: int = 40) -> list[str]:
    """Where the time went, one block of lines per case; bars of all cases have one scale."""
    scale = max((share for answer in answers for share in answer.badput.values()), default=0.0)
    lines: list[str] = []
    for name, answer in zip(names_of(answers), answers, strict=True):
        lines.append(f"{name}: ETTR {answer.ettr:.1%}; lost:")
        for category, share in sorted(answer.badput.items(), key=lambda item: -item[1]):
            if share >= 0.00005:
                lines.append(f"  {category:<10}{share:7.2%} {bar(share, scale, width)}")
    return lines


def figures(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """Plotly figures as plain data: where the time went, and ETTR with its spread beside the formula."""
    names = names_of(answers)
    lost = [
        {
            "type": "bar",
            "orientation": "h",
            "name": category,
            "y": names,
            "x": [100.0 * answer.badput[category] for answer in answers],
            "marker": {"color": colour},
            "hovertemplate": f"%{{x:.2f}} %: {CATEGORIES[category]}<extra>{category}</extra>",
        }
        for category, colour in zip(CATEGORIES, COLOURS, strict=True)
    ]
    ettr = [
        {
            "type": "box",
            "name": "simulated",
            "x": [name for name, answer in zip(names, answers, strict=True) for _ in answer.runs],
            "y": [100.0 * run.ettr for answer in answers for run in answer.runs],
            "boxpoints": "all",
            "marker": {"color": BLUE},
        },
        {
            "type": "scatter",
            "mode": "markers",
            "name": "formula",
            "x": names,
            "y": [100.0 * answer.formula for answer in answers],
            "marker": {"color": GREEN, "symbol": "diamond", "size": 10},
        },
    ]
    height = 160 + 60 * len(answers)
    return [
        {
            "data": lost,
            "layout": {
                **_LAYOUT,
                "barmode": "stack",
                "height": height,
                "xaxis": {"title": {"text": "% of wall time"}},
                "yaxis": {"autorange": "reversed"},  # from above, as in the table
            },
        },
        {"data": ettr, "layout": {**_LAYOUT, "height": 380, "yaxis": {"title": {"text": "ETTR, %"}}}},
    ]


_TITLES = ("Where the time went", "Effective training time of each seed, beside the formula")
_LAYOUT: dict[str, Any] = {
    "margin": {"l": 160, "r": 20, "t": 20, "b": 50},
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "font": {"family": "system-ui, sans-serif"},
}


def render(
    title: str, facts: Sequence[tuple[str, str]], answers: Sequence[Answer], *, script: str | None = None
) -> str:
    """The page. `script` replaces Plotly's packaged script (tests hand in an empty one)."""
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{answer.ettr:.2%}</td><td>{answer.spread[0]:.2%}</td>"
        f"<td>{answer.formula:.2%}</td><td>{answer.goodput:.2%}</td>"
        f"<td>{sum(run.failures for run in answer.runs) / len(answer.runs):.0f}</td></tr>"
        for name, answer in zip(names_of(answers), answers, strict=True)
    )
    said = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in facts)
    shown = figures(answers)
    # Whatever a policy is named, it must not end the script element.
    data = json.dumps(shown).replace("<", "\\u003c")
    return _PAGE.format(
        title=html.escape(title),
        facts=said,
        rows=rows,
        script=plotly_script() if script is None else script,
        divs="".join(f'<h2>{title}</h2><div id="plot{number}"></div>' for number, title in enumerate(_TITLES)),
        data=data,
        version=html.escape(__version__),
    )


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title><style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }}
table {{ border-collapse: collapse; margin: 1rem 0 }} td, th {{ padding: .2rem .8rem; text-align: right }}
td:first-child, th:first-child {{ text-align: left }} tr {{ border-bottom: 1px solid #ddd }}
@media (prefers-color-scheme: dark) {{ body {{ background: #111; color: #ddd }} tr {{ border-color: #444 }} }}
</style></head><body><h1>{title}</h1><table>{facts}</table>
<table><tr><th>case</th><th>ETTR</th><th>spread</th><th>formula</th><th>goodput</th><th>failures</th></tr>{rows}</table>
{divs}
<p>Simulated by Holdfast {version}: the real controller and engine over a simulated cluster.</p>
<script>{script}</script><script>
const figures = {data};
const ink = matchMedia("(prefers-color-scheme: dark)").matches ? "#ddd" : "#222";
const how = {{responsive: true, displayModeBar: false}};
if (window.Plotly) figures.forEach((one, n) => {{
  one.layout.font.color = ink;
  Plotly.newPlot("plot" + n, one.data, one.layout, how);
}});
</script></body></html>
"""
