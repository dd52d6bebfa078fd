"""Novelty: what a job always prints is known, what it never printed stands out."""

from holdfast.detect.novelty import TEMPLATES_MAX, Novelty, template


def usual(n):
    return [f"[2025-03-01 10:00:{i % 60:02d}] step {i} loss {3 - i / 1000:.3f} lr 1e-4" for i in range(n)] + [
        f"INFO loaded shard /data/train/part-{i:05d}.bin in 0.{i}s" for i in range(50)
    ]


def test_numbers_paths_and_times_are_taken_out():
    """The same print with other values is the same template."""
    assert template("step 7 loss 2.5 at 0xdead") == template("step 8 loss nan at 0xbeef")
    assert template("[rank3]: read '/a/b' ok") == template("[rank9]: read '/c' ok")


def test_new_line_stands_out():
    """A line never printed before is found among the usual ones, trouble first."""
    known = Novelty()
    known.learn(usual(200))
    assert not known.is_new("[2025-03-01 11:00:00] step 99999 loss 0.100 lr 1e-5")
    tail = [*usual(20), "flux capacitor 3 reports brownout", "collector: state lost, giving up", *usual(5)]
    found = [tail[i] for i in known.strangest(tail)]
    assert found == ["collector: state lost, giving up", "flux capacitor 3 reports brownout"]


def test_bounded():
    """Endless variety does not grow the memory."""
    known = Novelty()
    known.learn(
        " ".join(f"w{chr(97 + (i >> s) % 26)}{chr(97 + (i * 7 >> s) % 26)}x" for s in range(5)) for i in range(20000)
    )
    assert len(known) <= TEMPLATES_MAX


def test_empty_lines_are_nothing():
    """Blank lines are neither known nor new."""
    assert not Novelty().is_new("   ")
