"""The manifest: what a reader accepts, and what it refuses by name."""

import json

import pytest

from holdfast.checkpoint.manifest import (
    FileEntry,
    Manifest,
    ManifestError,
    Problem,
    Verdict,
    checkpoint_name,
    decode,
    digest,
    encode,
    parse_name,
)

MANIFEST = Manifest(
    step=120,
    epoch=2,
    attempt="7(1)",
    world_size=4,
    saved_at=1.5,
    writer="ab12",
    layout="replicated",
    files=(FileEntry("shared.pt", 10, "0" * 32), FileEntry("part/x.bin", 0, "f" * 32)),
    extra={"tokens": 12},
)


def test_a_manifest_survives_the_round_trip():
    """Every field comes back as it was written."""
    assert decode(encode(MANIFEST)) == MANIFEST
    assert (MANIFEST.name, MANIFEST.size) == ("step-000000120.e000002", 10)


@pytest.mark.parametrize("position", range(3, 400, 37))
def test_any_changed_byte_is_refused(position):
    """A manifest vouches for itself: a flipped bit anywhere in it is found, whatever it hits."""
    content = bytearray(encode(MANIFEST))
    content[position] ^= 0x04
    try:
        assert decode(bytes(content)) == MANIFEST  # white space may differ
    except ManifestError:
        return


@pytest.mark.parametrize("length", [0, 1, 50, 200, -2])
def test_a_torn_manifest_is_refused(length):
    """A prefix of a manifest is none."""
    with pytest.raises(ManifestError):
        decode(encode(MANIFEST)[:length])


def resigned(**changes):
    raw = json.loads(encode(MANIFEST))
    raw.pop("self_xxh3_128")
    raw.update(changes)
    raw["self_xxh3_128"] = digest(json.dumps(raw, sort_keys=True, separators=(",", ":")).encode())
    return json.dumps(raw).encode()


def test_keys_of_a_later_version_are_ignored():
    """A later Holdfast may add keys; today's reader goes on."""
    assert decode(resigned(later={"a": 1})) == MANIFEST


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": 2}, "version 2"),
        ({"format": "other"}, "not a holdfast-checkpoint"),
        ({"files": [{"path": "../../etc/passwd", "size": 1, "xxh3_128": ""}]}, "leaves the checkpoint's folder"),
        ({"files": [{"path": "/etc/passwd", "size": 1, "xxh3_128": ""}]}, "leaves the checkpoint's folder"),
        ({"files": [{"path": "x"}]}, "size"),
        ({"step": "many"}, "wrong type"),
        ({"files": None}, "wrong type"),
    ],
)
def test_what_cannot_be_read_is_named(changes, said):
    """A refusal says what is wrong, in one line."""
    with pytest.raises(ManifestError, match=said):
        decode(resigned(**changes))


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[]", b"null", b"[" * 100_000, b"\x00" * 40])
def test_garbage_is_refused(content):
    """Bytes that were never a manifest end in the same error."""
    with pytest.raises(ManifestError):
        decode(content)


def test_extra_must_be_plain_json():
    """A program that hands over an object that JSON cannot hold is told so."""
    with pytest.raises(ManifestError, match="extra"):
        encode(Manifest(1, 0, "", 1, 0.0, "", "x", (), {"f": object()}))


def test_names_are_read_back():
    """Only published names parse; drafts, quarantine and other folders do not."""
    assert parse_name(checkpoint_name(120, 2)) == (120, 2)
    assert parse_name(checkpoint_name(12_345_678_901, 1_234_567)) == (12_345_678_901, 1_234_567)
    for name in (".tmp-step-000000120.e000002-ab", "bad-step-000000120.e000002", "step-12", "step-000000120.e000002x"):
        assert parse_name(name) is None


def test_a_verdict_speaks():
    """The sentence names the first problem and counts the rest."""
    problem = Problem("missing_file", "a.bin", "missing")
    assert Verdict("s", "full", None, ()).sentence == "s is good (full check)"
    assert Verdict("s", "full", None, (problem, problem)).sentence == "s is damaged: a.bin: missing and 1 more"
