"""Rule files and the cache of the compiled catalogue."""

import pytest

from holdfast.adapters import catalogue_files
from holdfast.adapters.catalogue_files import read_catalogue, read_matcher
from holdfast.detect.matcher import StreamSource
from holdfast.errors import ConfigError

LINE = b"OSError: [Errno 28] No space left on device\n"


@pytest.fixture(scope="module")
def catalogue():
    return read_catalogue()


def works(matcher):
    return [m.rule.id for m in matcher.stream(StreamSource()).feed(LINE, 0.0)] == ["disk.full"]


def test_cache_is_written_and_used(catalogue, tmp_path, monkeypatch):
    """The second start compiles nothing."""
    assert works(read_matcher(catalogue, tmp_path))
    monkeypatch.setattr(catalogue_files, "compile_database", lambda _c: pytest.fail("compiled again"))
    assert works(read_matcher(catalogue, tmp_path))


@pytest.mark.parametrize("damage", ["torn", "foreign", "empty"])
def test_bad_cache_is_ignored_and_replaced(catalogue, tmp_path, damage):
    """A torn, foreign or empty cache file does no harm and is written anew."""
    read_matcher(catalogue, tmp_path)
    (path,) = tmp_path.glob("*.hs")
    good = path.read_bytes()
    path.write_bytes({"torn": good[: len(good) // 2], "foreign": b"something else" * 100, "empty": b""}[damage])
    assert works(read_matcher(catalogue, tmp_path))
    assert path.read_bytes()[:200] == good[:200]
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_unwritable_cache_only_costs_time(catalogue, tmp_path):
    """A cache folder that cannot be made is no error."""
    (tmp_path / "file").write_text("")
    assert works(read_matcher(catalogue, tmp_path / "file" / "below"))


def test_site_rules(tmp_path):
    """A site's folder adds rules; a folder that cannot be read is named."""
    (tmp_path / "own.toml").write_text(
        '[[rule]]\nid = "site.pump"\npattern = "coolant pump stopped"\nmatches = ["coolant pump stopped"]\n'
    )
    assert "site.pump" in read_catalogue([tmp_path])
    with pytest.raises(ConfigError, match="cannot read rules"):
        read_catalogue([tmp_path / "missing.toml"])
