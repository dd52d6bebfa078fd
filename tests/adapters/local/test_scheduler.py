"""Gang scheduling: who starts where, decided from values alone."""

from holdfast.adapters.local.scheduler import Seat, Wish, plan


def seats(*names: str, spares: tuple[str, ...] = (), busy: tuple[str, ...] = ()) -> list[Seat]:
    return [Seat(node=n, free=n not in busy, spare=n in spares) for n in names]


def test_a_job_gets_all_its_nodes_or_none() -> None:
    """A job of three nodes does not start on two, and the reason says so."""
    decided = plan([Wish("1", 3, 0.0)], seats("a", "b", "c", busy=("c",)))
    assert decided.starts == ()
    assert decided.waits == {"1": "needs 3 nodes, 2 are free"}


def test_spares_are_taken_last() -> None:
    """A spare serves only when the ordinary nodes do not suffice, even if its name comes first."""
    cluster = seats("a", "b", "c", spares=("a",))
    assert plan([Wish("1", 2, 0.0)], cluster).starts == (("1", ("b", "c")),)
    assert plan([Wish("1", 3, 0.0)], cluster).starts == (("1", ("a", "b", "c")),)


def test_an_excluded_node_is_replaced_by_the_spare() -> None:
    """With one of two nodes excluded, the spare takes its place."""
    wish = Wish("1", 2, 0.0, excluded=frozenset({"a"}))
    assert plan([wish], seats("a", "b", "s", spares=("s",))).starts == (("1", ("b", "s")),)


def test_older_jobs_come_first_and_later_ones_do_not_overtake() -> None:
    """The first job that does not fit keeps the ones behind it waiting: a requeued job is not starved."""
    decided = plan([Wish("2", 1, 2.0), Wish("1", 2, 1.0)], seats("a", "b", busy=("b",)))
    assert decided.starts == ()
    assert decided.waits == {"1": "needs 2 nodes, 1 are free", "2": "waits behind job 1"}
    assert decided.lack_nodes == {"1"}


def test_priority_comes_before_age() -> None:
    """A job of higher priority starts before an older one."""
    decided = plan([Wish("1", 1, 1.0), Wish("2", 1, 2.0, priority=5)], seats("a"))
    assert decided.starts == (("2", ("a",)),)


def test_a_job_that_can_never_run_blocks_nobody() -> None:
    """Exclusions that leave too few nodes are said, and later jobs start."""
    wishes = [Wish("1", 2, 1.0, excluded=frozenset({"a"})), Wish("2", 1, 2.0)]
    decided = plan(wishes, seats("a", "b"))
    assert decided.starts == (("2", ("a",)),)
    assert decided.waits == {"1": "needs 2 nodes, only 1 are left after its exclusions"}


def test_two_jobs_never_share_a_node() -> None:
    """What the first one takes is not offered to the second."""
    decided = plan([Wish("1", 1, 1.0), Wish("2", 1, 2.0)], seats("a", "b"))
    assert decided.starts == (("1", ("a",)), ("2", ("b",)))
