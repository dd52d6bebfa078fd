"""A training job without torch: counts, meets its peers after each step, checkpoints, reports, leaves when asked.

Started as `python -m holdfast.workload.counter`, one process per rank, by drills and by tests that need
hundreds of short runs. It behaves as a data-parallel job does where it matters: a step ends only when
every rank has taken part, so a stuck rank stalls all and a dead one breaks all; the state after a step
follows from the state before it, so a wrong or missing step shows in the loss. A step takes
`--step-time` seconds; nothing else waits except for peers.
"""

import json
import os
import socket
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from holdfast import telemetry
from holdfast.checkpoint.errors import EX_RESTART, CheckpointError, SaveError
from holdfast.checkpoint.manifest import digest
from holdfast.checkpoint.store import CheckpointStore, pinned_step, verify
from holdfast.workload.arguments import Options, Progress, RankPlace, parse

STATE_FILE = "counter.json"
KEEP = 3
CONNECT_LIMIT_S = 300.0  # like a process group's own: peers may start late
_WORDS = struct.Struct("!QQ")


class Link:
    """The connection to one peer; a lost peer raises the RuntimeError, in the words, that gloo uses."""

    def __init__(self, stream: socket.socket) -> None:
        stream.settimeout(None)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = stream
        host, port = stream.getpeername()[:2]  # asked now: a reset connection does not know it any more
        self._lost = f"Connection closed by peer [{host}]:{port}"

    def send(self, value: int, flag: int) -> None:
        """Two words to the peer."""
        try:
            self._stream.sendall(_WORDS.pack(value, flag))
        except OSError as error:
            raise RuntimeError(self._lost) from error

    def receive(self) -> tuple[int, int]:
        """Two words from the peer; waits for ever, as a hang is for Holdfast to find."""
        content = b""
        while len(content) < _WORDS.size:
            try:
                part = self._stream.recv(_WORDS.size - len(content))
            except OSError as error:
                raise RuntimeError(self._lost) from error
            if not part:
                raise RuntimeError(self._lost)
            content += part
        value, flag = _WORDS.unpack(content)
        return value, flag

    def close(self) -> None:
        """Hang up; a peer that still waits sees a closed connection."""
        self._stream.close()


class Peers:
    """All ranks around rank 0's socket; `meet` is the job's only collective."""

    def __init__(self, place: RankPlace) -> None:
        self._leads = place.rank == 0
        self._links: list[Link] = []
        if place.world_size == 1:
            return
        address = (place.master_addr, place.master_port)
        if not self._leads:
            link = Link(_connect(address))
            link.send(place.rank, 0)
            self._links = [link]
            return
        by_rank: dict[int, Link] = {}
        with socket.create_server(address, backlog=place.world_size) as server:
            server.settimeout(CONNECT_LIMIT_S)
            while len(by_rank) < place.world_size - 1:
                link = Link(server.accept()[0])
                by_rank[link.receive()[0]] = link
        self._links = [by_rank[rank] for rank in sorted(by_rank)]

    def meet(self, value: int, flag: bool = False) -> tuple[int, bool]:
        """Sum (mod 2**64) of every rank's value, and whether any rank raised its flag; waits for all.

        Raises:
            RuntimeError: a peer's connection closed.
        """
        if self._leads:
            for link in self._links:
                theirs, raised = link.receive()
                value = (value + theirs) % 2**64
                flag = flag or bool(raised)
            for link in self._links:
                link.send(value, flag)
        elif self._links:
            self._links[0].send(value, flag)
            value, raised = self._links[0].receive()
            flag = bool(raised)
        return value, flag

    def close(self) -> None:
        """Hang up on all."""
        for link in self._links:
            link.close()


def next_value(value: int, seed: int, summed: int) -> int:
    """The state after one step: a linear congruence (Knuth's MMIX constants) over the ranks' sum."""
    return (value * 6364136223846793005 + 1442695040888963407 + seed + summed) % 2**64


def loss_of(step: int, value: int) -> float:
    """Falls with the step, and shows in its last digits whether every earlier step was right."""
    return 4.0 / (1.0 + step / 40.0) + (value % 9973) * 1e-6


def main(argv: Sequence[str] | None = None) -> int:
    """Train; returns 0 when all steps are done, `EX_RESTART` when asked to leave."""
    options = parse("A training job that only counts.", argv)
    place = RankPlace.from_environment()
    try:
        return _train(options, place, Progress(options, place))
    except CheckpointError as error:
        sys.stderr.write(f"[rank{place.rank}] {type(error).__name__}: {error}\n")
        return 1


def _train(options: Options, place: RankPlace, progress: Progress) -> int:
    with telemetry.phase("init"):
        peers = Peers(place)
    store = CheckpointStore(options.checkpoint_dir, mirrors=options.mirror) if place.rank == 0 else None
    with telemetry.phase("load"):
        first, value = _restore(store, options.seed) if store is not None else (0, 0)
        first, value = peers.meet(first)[0], peers.meet(value)[0]
    progress.say(f"starting at step {first} of {options.steps}, attempt {place.attempt}, {place.world_size} ranks")
    for step in range(first + 1, options.steps + 1):
        began = time.monotonic()
        telemetry.step_begin(step)
        time.sleep(options.step_time)
        summed, leave = peers.meet((step * (place.rank + 1)) % 2**64, telemetry.evacuate_requested())
        value = next_value(value, options.seed, summed)
        loss = loss_of(step, value)
        telemetry.step_end(step, loss=loss, samples=1, tokens=1)
        progress.step(step, loss)
        is_saved = False
        if store is not None and (leave or (options.checkpoint_every and step % options.checkpoint_every == 0)):
            is_saved = _save(store, step, value, options, place)
        # Nobody hangs up before the state is durable: a launcher may end the rest when the first rank leaves.
        # And nobody leaves at all when it could not be saved; the next step tries again.
        if leave and step < options.steps and peers.meet(0, is_saved)[1]:
            progress.say(f"asked to leave: saved at step {step}, {time.monotonic() - began:.2f} s after it began")
            peers.close()
            return EX_RESTART
    peers.meet(0)
    peers.close()
    progress.say("training complete")
    return 0


def _restore(store: CheckpointStore, seed: int) -> tuple[int, int]:
    """(step, value) of the newest good checkpoint; (0, seed) without one."""
    for info, reason in store.ruled_out():
        sys.stderr.write(f"holdfast.checkpoint: {info.path} {reason}; it is ignored\n")
    for info in store.candidates(not_after=pinned_step(os.environ)):
        verdict = verify(info.path)
        if verdict.ok:
            state = json.loads((info.path / STATE_FILE).read_bytes())
            store.settle(info.step)
            return int(state["step"]), int(state["value"])
        store.quarantine(info)
        sys.stderr.write(f"holdfast.checkpoint: {info.path.parent}: {verdict.sentence}; trying an older one\n")
    store.settle(0)
    return 0, seed


def _save(store: CheckpointStore, step: int, value: int, options: Options, place: RankPlace) -> bool:
    """Publish the state; False when the disk failed, which is said and does not end the training."""
    with telemetry.phase("checkpoint"):
        try:
            published = _publish(store, step, value, options, place)
        except SaveError as error:
            sys.stderr.write(f"holdfast.checkpoint: {error}; training goes on\n")
            return False
        telemetry.checkpoint(step, durable=True)
        for mirror in store.mirrors:
            try:
                store.copy(published, mirror)
            except (OSError, SaveError) as error:
                sys.stderr.write(f"holdfast.checkpoint: the mirror {mirror} did not get {published.name}: {error}\n")
        store.prune(KEEP)
        return True


def _publish(store: CheckpointStore, step: int, value: int, options: Options, place: RankPlace) -> Path:
    padding = digest(str(step).encode()) * (options.state_kb * 32)
    content = json.dumps({"step": step, "value": value, "padding": padding}).encode()
    pending = store.begin(step)
    try:
        pending.write_bytes(STATE_FILE, content)
        telemetry.checkpoint(step, durable=False)
        return pending.publish(world_size=place.world_size, attempt=place.attempt, layout="counter")
    except OSError as error:
        pending.abandon()
        raise store.save_error(step, error) from error
    except CheckpointError:
        pending.abandon()
        raise


def _connect(address: tuple[str, int]) -> socket.socket:
    """Reach rank 0, which may not listen yet; its port is polled because nothing can be waited on."""
    deadline = time.monotonic() + CONNECT_LIMIT_S
    while True:
        try:
            return socket.create_connection(address, timeout=5.0)
        except OSError as error:
            if time.monotonic() > deadline:
                raise RuntimeError(f"rank 0 cannot be reached at [{address[0]}]:{address[1]}: {error}") from error
            time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main())
