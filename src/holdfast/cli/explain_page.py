"""`holdfast explain --html`: one self-contained page; every text from a log is escaped. Called by `cli.explain`."""

from __future__ import annotations

from jinja2 import Environment

from holdfast.detect.catalogue import Catalogue
from holdfast.detect.explain import Explanation

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Holdfast: {{ e.summary }}</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; }
h1 { font-size: 1.4rem; } .fault { color: #b3261e; } .healthy { color: #1b6e37; } .unknown { color: #8a6100; }
dl { display: grid; grid-template-columns: 10rem 1fr; gap: .3rem 1rem; } dt { color: #555; } dd { margin: 0; }
table { border-collapse: collapse; width: 100%; font-size: .85rem; } td { padding: .25rem .5rem; vertical-align: top; }
td.text { font-family: ui-monospace, monospace; overflow-wrap: anywhere; } tr.root { background: #fdecea; }
td.place { white-space: nowrap; color: #555; }
@media (prefers-color-scheme: dark) { body { background: #16181b; color: #e6e6e6; } tr.root { background: #45211f; }
  dt, td.place { color: #a5a5a5; } }
</style></head><body>
<h1><span class="{{ e.verdict }}">{{ e.verdict }}</span>: {{ e.summary }}</h1>
<p>{{ e.story }}</p>
{% if e.verdict != "healthy" %}<dl>
<dt>cause</dt><dd>{{ e.cause }}</dd><dt>domain</dt><dd>{{ e.domain }}</dd>
{% if e.suspects.nodes %}<dt>nodes</dt><dd>{{ e.suspects.nodes | join(", ") }}</dd>{% endif %}
{% if e.suspects.ranks %}<dt>ranks</dt><dd>{{ e.suspects.ranks | join(", ") }}</dd>{% endif %}
{% if e.suspects.gpus %}<dt>GPUs</dt><dd>{{ e.suspects.gpus | join(", ") }}</dd>{% endif %}
<dt>confidence</dt><dd>{{ "%.0f" | format(e.confidence * 100) }} %</dd>
<dt>restart helps</dt><dd>{{ {true: "yes", false: "no", none: "cannot be told"}[e.restart_helps] }}</dd>
{% if advice %}<dt>what to do</dt><dd>{{ advice }}</dd>{% endif %}</dl>{% endif %}
{% if e.evidence %}<h2>Evidence</h2><table>
{% for line in e.evidence %}<tr class="{{ line.role }}"><td>{{ line.role }}</td>
<td class="place">{{ line.file }}:{{ line.line }}</td><td class="text">{{ line.text }}</td><td>{{ line.rule }}</td></tr>
{% endfor %}</table>{% endif %}
</body></html>
"""


def page(explained: Explanation, catalogue: Catalogue) -> str:
    """The page's text."""
    environment = Environment(autoescape=True)
    return environment.from_string(_PAGE).render(e=explained, advice=catalogue.get(explained.cause).advice)
