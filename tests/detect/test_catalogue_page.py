"""docs/explain.md names every field of the JSON form (docs/catalogue.md is compared in tests/test_docs.py)."""

from pathlib import Path

from msgspec.structs import fields

from holdfast.detect.explain import EvidenceLine, Explanation, Suspects

DOCS = Path(__file__).parents[2] / "docs"


def test_json_form_is_documented():
    """Every field of the JSON form stands in docs/explain.md."""
    text = (DOCS / "explain.md").read_text(encoding="utf-8")
    names = [f.name for kind in (Explanation, EvidenceLine, Suspects) for f in fields(kind)]
    assert [name for name in names if f"`{name}`" not in text] == []
