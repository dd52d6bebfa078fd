"""Equal stacks are grouped; the rank that stands apart is named."""

from dataclasses import dataclass

import pytest

from holdfast.detect.stack_groups import group_stacks, training_stack, waits_in_collective


@dataclass(frozen=True)
class Frame:
    function: str
    file: str
    line: int = 1


@dataclass(frozen=True)
class Thread:
    frames: tuple
    current: bool = False
    name: str | None = None


TORCH = "/venv/lib/python3.11/site-packages/torch"
ALL_REDUCE = (
    Frame("all_reduce", f"{TORCH}/distributed/distributed_c10d.py", 2806),
    Frame("wrapper", f"{TORCH}/distributed/c10d_logger.py", 81),
    Frame("train", "/home/mei/train.py", 70),
)
BACKWARD = (
    Frame("_engine_run_backward", f"{TORCH}/autograd/graph.py", 829),
    Frame("backward", f"{TORCH}/_tensor.py", 648),
    Frame("train", "/home/mei/train.py", 66),
)
RECEIVE = (
    Frame("_receive", "/home/mei/counter.py", 30),
    Frame("main", "/home/mei/counter.py", 99),
)
ELSEWHERE = (Frame("load_batch", "/home/mei/data.py", 12), Frame("train", "/home/mei/train.py", 60))


@pytest.mark.parametrize(
    ("frames", "waits"),
    [
        (ALL_REDUCE, True),
        (BACKWARD, True),
        (RECEIVE, True),
        ((Frame("recv_into", "/usr/lib/python3.11/socket.py"), *ELSEWHERE), True),
        ((Frame("select", "/usr/lib/python3.11/selectors.py"), *ELSEWHERE), True),
        ((Frame("wait", f"{TORCH}/distributed/distributed_c10d.py"), *ELSEWHERE), True),
        ((Frame("wait", "/usr/lib/python3.11/threading.py"), *ALL_REDUCE), False),
        ((Frame("sleep_a_while", "/home/mei/train.py"), *ALL_REDUCE), False),
        ((Frame("forward", f"{TORCH}/nn/modules/linear.py"), *ELSEWHERE), False),
        (ELSEWHERE, False),
        ((Frame("sender_name", "/home/mei/train.py"),), False),
        ((), False),
    ],
)
def test_waiting_is_told_from_the_innermost_calls(frames, waits):
    """Collectives, receives and DDP's backward wait for others; user code on its way there does not."""
    assert waits == waits_in_collective(frames)


def test_equal_places_are_one_group_whatever_the_line_or_folder():
    """Line numbers, addresses and installation folders do not tell two stacks apart."""
    here = (Frame("run <locals at 0x7f01>", "/a/lib/python3.11/x.py", 5), Frame("f", "/home/mei/t.py", 9))
    there = (Frame("run <locals at 0x8e02>", "/b/lib/python3.11/x.py", 7), Frame("f", "/home/mei/t.py", 11))
    groups, odd = group_stacks({0: here, 1: there})
    assert [group.ranks for group in groups] == [(0, 1)]
    assert odd == ()
    assert groups[0].frames == ("run <locals at 0x7f01> (/a/lib/python3.11/x.py:5)", "f (/home/mei/t.py:9)")


def test_one_of_many_elsewhere_is_odd():
    """63 ranks wait in an all-reduce, rank 9 is elsewhere."""
    stacks = dict.fromkeys(range(64), ALL_REDUCE) | {9: ELSEWHERE}
    groups, odd = group_stacks(stacks)
    assert odd == (9,)
    assert [len(group.ranks) for group in groups] == [63, 1]


@pytest.mark.parametrize("waiting", [ALL_REDUCE, BACKWARD, RECEIVE])
def test_of_two_ranks_the_one_not_in_a_collective_is_odd(waiting):
    """No majority is needed where the stacks themselves say who waits."""
    assert group_stacks({0: ELSEWHERE, 1: waiting})[1] == (0,)


def test_waiting_in_different_collectives_is_not_odd_beside_one_that_is_elsewhere():
    """Two ranks in backward, one in all-reduce, one elsewhere: only the last is odd."""
    assert group_stacks({0: BACKWARD, 1: BACKWARD, 2: ALL_REDUCE, 3: ELSEWHERE})[1] == (3,)


def test_all_wait_but_one_in_another_collective():
    """A mismatched collective: the minority is odd."""
    assert group_stacks({0: BACKWARD, 1: BACKWARD, 2: BACKWARD, 3: ALL_REDUCE})[1] == (3,)


def test_silent_rank_is_odd_when_the_rest_wait():
    """A stopped rank gives no stack."""
    assert group_stacks({0: ALL_REDUCE, 1: ()})[1] == (1,)
    assert group_stacks({0: ALL_REDUCE}, silent=[1])[1] == (1,)


def test_silent_rank_is_odd_when_the_rest_gave_stacks_elsewhere():
    """Three ranks spin in user code, one gives nothing."""
    assert group_stacks({0: ELSEWHERE, 1: ELSEWHERE, 2: ELSEWHERE}, silent=[3])[1] == (3,)


def test_nobody_is_odd_when_all_stand_alike_or_all_differ():
    """A hang of all together names nobody, nor does a crowd without a majority."""
    assert group_stacks(dict.fromkeys(range(8), ALL_REDUCE))[1] == ()
    different = {rank: (Frame(f"f_{'abcd'[rank]}", "/home/mei/t.py"),) for rank in range(4)}
    assert group_stacks(different)[1] == ()
    assert group_stacks({})[1] == ()
    assert group_stacks({}, silent=[0, 1])[1] == ()


def test_crowd_elsewhere_outweighs_a_few_that_wait():
    """One rank ran ahead into a barrier while seven compute: it is the odd one."""
    stacks = dict.fromkeys(range(8), ELSEWHERE) | {5: ALL_REDUCE}
    assert group_stacks(stacks)[1] == (5,)


def test_deep_stacks_are_cut_and_said_to_be():
    """Evidence is bounded."""
    deep = tuple(Frame("recurse", "/home/mei/t.py", line) for line in range(40))
    (group,), _ = group_stacks({0: deep})
    assert len(group.frames) == 17
    assert group.frames[-1] == "... 24 more"


def test_training_stack_is_the_main_threads():
    """By name (py-spy), by being current (faulthandler), else the last of the dump."""
    main, other = Thread(ALL_REDUCE, name="MainThread"), Thread(ELSEWHERE, current=True, name="worker")
    assert training_stack([other, main]) == ALL_REDUCE
    assert training_stack([Thread(ELSEWHERE), Thread(ALL_REDUCE, current=True), Thread(ELSEWHERE)]) == ALL_REDUCE
    assert training_stack([Thread(ELSEWHERE), Thread(ALL_REDUCE), Thread(())]) == ALL_REDUCE
    assert training_stack([Thread(())]) == ()
