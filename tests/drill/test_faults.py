"""Injection: the right file or breaker, the true time, refusal, and undoing in every case."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.adapters.clock import run_virtual
from holdfast.adapters.local.client import LocalOrchestrator
from holdfast.checkpoint.store import CheckpointStore, verify
from holdfast.drill.clusters import SlurmBreaker
from holdfast.drill.faults import BREAKS, CannotInjectError, Injection, aim, flip_bits, newest_checkpoint, xid_line
from holdfast.drill.kinds import KINDS
from holdfast.drill.ports import Site
from holdfast.drill.scenario import find, read_scenario
from holdfast.errors import RefusedError, UsageError
from holdfast.failpoint import command
from holdfast.model.cluster import JobKey, JobView


def scenario(text, kind="kill9"):
    return read_scenario(f'name = "x"\nkind = "{kind}"\n{text}')


def site_of(breaker, clock):
    return Site(eyes=breaker, job=JobKey("c", "7"), clock=clock, breaker=breaker)


def injection(what, world, clock, seed=1):
    target = aim(what, world.record, 40, seed)
    return Injection(what, "x-1", target=target, job=world.record, site=site_of(world, clock))


@given(seed=st.integers(0, 1000))
def test_the_seed_decides_and_repeats(seed):
    """Same seed, same rank, always one that exists, on the node that runs it."""
    from holdfast.model.records import AttemptRecord, JobRecord

    key = JobKey("c", "7")
    job = JobRecord(key=key, view=JobView(key=key), attempts=[AttemptRecord(number=0, nodes=("a", "b"), ranks=4)])
    first, again = aim(scenario(""), job, 0, seed), aim(scenario(""), job, 0, seed)
    assert first == again
    assert first.rank in range(4)
    assert first.node == ("a" if first.rank < 2 else "b")


def test_targets_and_steps_are_taken_from_the_scenario(world):
    """A rank with its node, a node by its name or by its rank, a step counted from the last checkpoint."""
    assert aim(scenario("[target]\nrank = 3\n"), world.record, 40, 1).node == "node02"
    by_rank = aim(scenario('[target]\nnode = "of_rank:0"\n', "node_loss"), world.record, 40, 1)
    assert (by_rank.node, by_rank.rank) == ("node01", None)
    assert aim(scenario('[target]\nnode = "node09"\n', "node_loss"), world.record, 40, 1).node == "node09"
    assert aim(scenario("[when]\nsteps_after = 4\n"), world.record, 40, 1).at_step == 44
    assert aim(scenario("[when]\nat_step = 9\n"), world.record, 40, 1).at_step == 9
    with pytest.raises(UsageError, match="ranks 0 to 3"):
        aim(scenario("[target]\nrank = 4\n"), world.record, 40, 1)
    world.record.attempts.clear()
    with pytest.raises(UsageError, match="no attempt"):
        aim(scenario(""), world.record, 40, 1)


def test_a_job_that_is_not_open_to_drills_is_refused_before_anything_is_touched(world, clock, tmp_path):
    """No file, no call."""
    world.record.view = JobView(key=world.record.key, job_dir=str(tmp_path))
    with pytest.raises(RefusedError, match="drill_ok"):
        injection(find("kill9"), world, clock)
    assert list(tmp_path.iterdir()) == []


def test_faults_in_the_job_are_command_files_and_their_time_is_the_marks(world, clock):
    """The command names rank, step, attempt and parameters; undo writes the abort file."""

    async def work():
        obeying = asyncio.create_task(world.obey())
        what = find("hang_user_buffer")
        hit = injection(what, world, clock)
        began = clock.now()
        fired = await hit.inject(10.0)
        obeying.cancel()
        folder = world.folder / "drill"
        order = command.decode((folder / "x-1.json").read_bytes())
        assert (order.kind, order.at_step, order.attempt) == ("hang_user_buffer", 48, 2)
        assert order.params["busy"] is True
        assert order.ranks == (fired.rank,)
        assert fired.step == 48
        assert 0.5 <= fired.at - began < 1.0
        assert not (folder / "x-1.abort").exists()
        await hit.undo()
        assert (folder / "x-1.abort").exists()

    run_virtual(work())


def test_a_rank_that_refuses_or_does_not_answer_fails_the_drill_with_its_word(world, clock):
    """The `.failed` file's reason, or the time limit; both can still be undone."""

    async def work():
        refused = injection(scenario("[target]\nrank = 1\n", "nan_loss"), world, clock)
        folder = world.folder / "drill"
        folder.mkdir()
        (folder / command.failed_name("x-1", 1)).write_text(json.dumps({"error": "no live torch module"}))
        with pytest.raises(CannotInjectError, match="no live torch module"):
            await refused.inject(5.0)
        await refused.undo()
        assert (folder / "x-1.abort").exists()
        silent = injection(scenario("[target]\nrank = 2\n"), world, clock)
        with pytest.raises(CannotInjectError, match="within 5 s"):
            await silent.inject(5.0)

    run_virtual(work())


@pytest.mark.parametrize(
    ("name", "done", "undone"),
    [
        ("xid_74_replace", ["kmsg"], []),
        ("node_loss", ["power_off"], ["power_on"]),
        ("network_cut", ["cut"], ["heal"]),
        ("disk_full", ["fill_disk"], ["free_disk"]),
    ],
)
def test_faults_of_a_node_go_through_the_breaker_and_back(world, clock, name, done, undone):
    """Each breaker with its undoing, on the node of the job that was drawn."""

    async def work():
        hit = injection(find(name), world, clock)
        fired = await hit.inject(5.0)
        assert [call[0] for call in world.calls] == done
        assert fired.node in {"node01", "node02"}
        assert world.calls[0][1] == fired.node
        await hit.undo()
        await hit.undo()
        assert [call[0] for call in world.calls] == done + undone

    run_virtual(work())


def test_a_timed_fault_ends_by_itself(world, clock):
    """A cut of 25 s is healed after 25 s, and healed again (harmlessly) by the undo."""

    async def work():
        hit = injection(scenario("[params]\nfor_s = 25.0\n", "network_cut"), world, clock)
        await hit.inject(5.0)
        await asyncio.sleep(24.0)
        assert [call[0] for call in world.calls] == ["cut"]
        await asyncio.sleep(2.0)
        assert [call[0] for call in world.calls] == ["cut", "heal"]
        await hit.undo()

    run_virtual(work())


class Slurm:
    """A breaker of a scheduler: it notes what it is asked."""

    def __init__(self):
        self.calls = []

    deeds = SlurmBreaker.deeds

    async def do(self, *words, **facts):
        self.calls.append(words)


@pytest.mark.parametrize(
    "name", ["node_reboot", "slurmd_killed", "slurmctld_restarted", "slurmdbd_away", "shared_full"]
)
def test_what_breaks_a_scheduler_is_undone_where_it_can_be(name, world, clock):
    """Each kind is done to the node or to the scheduler, with a fault that needs it where there must be one, and undone."""
    port, broken = Slurm(), BREAKS[KINDS[name].name]
    what = scenario("", kind=name)
    hit = Injection(what, "x-1", target=aim(what, world.record, 40, 1), job=world.record, site=site_of(port, clock))

    async def work():
        await hit.inject(1.0)
        assert len(port.calls) == (2 if broken.needs_recovery else 1)
        await hit.undo()

    run_virtual(work())
    assert len(port.calls) == 1 + broken.needs_recovery + bool(broken.undo)


@pytest.mark.parametrize("broken", BREAKS.values(), ids=BREAKS)
def test_every_breaker_has_what_breaks(broken):
    """Slurm's breaker has all names in the table, and the embedded cluster's client those of nodes."""
    names = set(filter(None, (broken.deed, broken.undo)))
    assert names <= SlurmBreaker.deeds
    assert names <= LocalOrchestrator.deeds or broken.deed not in {"power_off", "cut", "fill_disk"}


def test_a_node_cannot_be_broken_without_a_breaker(world, clock):
    """Slurm without open nodes, say."""
    target = aim(find("node_loss"), world.record, 40, 1)
    hit = Injection(find("node_loss"), "x-1", target=target, job=world.record, site=site_of(None, clock))
    with pytest.raises(RefusedError, match="open to drills"):
        run_virtual(hit.inject(1.0))


def save(folder, step):
    pending = CheckpointStore(folder).begin(step)
    pending.write_bytes("state.bin", bytes(range(256)) * 16)
    return pending.publish(world_size=1, attempt="0", layout="counter")


def test_damage_is_found_only_by_the_content(tmp_path):
    """Size and times stay as they were; the hashes of the manifest tell."""
    path = save(tmp_path, 40)
    before = (path / "state.bin").stat()
    assert verify(path).ok
    assert flip_bits(path, 8, "seed") == path / "state.bin"
    after = (path / "state.bin").stat()
    assert (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)
    assert not verify(path).ok
    assert newest_checkpoint(tmp_path).step == 40
    with pytest.raises(CannotInjectError, match="no data"):
        flip_bits(tmp_path / "nothing", 1, "seed")


def test_the_checkpoint_that_is_damaged_is_one_that_was_just_published(world, clock):
    """Damage waits for the next save, then a rank is killed so that a restart must load it."""
    folder = world.folder / "checkpoints"
    save(folder, 30)

    async def work():
        obeying = asyncio.create_task(world.obey())
        asyncio.get_running_loop().call_later(3.0, save, folder, 40)
        hit = injection(find("corrupt_checkpoint"), world, clock)
        fired = await hit.inject(20.0)
        obeying.cancel()
        assert hit.damaged_step == 40
        assert not verify(newest_checkpoint(folder).path).ok
        order = command.decode((world.folder / "drill" / "x-1.json").read_bytes())
        assert (order.kind, order.at_step, order.ranks) == ("kill9", None, (fired.rank,))

    run_virtual(work())


def test_xid_lines_have_the_drivers_form():
    """Number and PCI address stand where the catalogue looks; a line of one's own is taken as it is."""
    line = xid_line({"xid": 74, "line": "", "gpu": "0000:b9:00"})
    assert line.startswith("NVRM: Xid (PCI:0000:b9:00): 74, ")
    assert "NVLink" in line
    assert xid_line({"xid": 74, "line": "mine", "gpu": ""}) == "mine"
