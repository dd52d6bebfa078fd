"""docs/catalogue.md is what the rule files say, and docs/explain.md names every field of the JSON form."""

import subprocess
import sys
from pathlib import Path

from msgspec.structs import fields

from holdfast.detect.explain import EvidenceLine, Explanation, Suspects

DOCS = Path(__file__).parents[2] / "docs"


def test_page_is_current():
    """Run `python docs/make_catalogue.py` after changing a rule."""
    assert subprocess.run([sys.executable, str(DOCS / "make_catalogue.py"), "--check"], check=False).returncode == 0


def test_json_form_is_documented():
    """Every field of the JSON form stands in docs/explain.md."""
    text = (DOCS / "explain.md").read_text(encoding="utf-8")
    names = [f.name for kind in (Explanation, EvidenceLine, Suspects) for f in fields(kind)]
    assert [name for name in names if f"`{name}`" not in text] == []
