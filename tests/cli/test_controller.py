"""`holdfast controller` as a process: ready, killed, succeeded, ended in order; bad input in one sentence."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import structlog

from holdfast.cli.controller import controller, parse_listen
from holdfast.client import Client, Trust
from holdfast.errors import HoldfastError, JournalError, RefusedError, UsageError
from holdfast.model import events as e
from holdfast.os.unix_sockets import NAME
from holdfast.wiring.controller import only_one
from holdfast.wiring.orchestrators import make_orchestrator

HOLDFAST = str(Path(sys.executable).parent / "holdfast")
LIMIT_S = 90.0
pytestmark = pytest.mark.timeout(600)


def mark(event_id: str) -> e.DrillFired:
    """An event that speaks of no node or job: no cluster stands behind these controllers."""
    return e.DrillFired(id=f"drill:test/{event_id}", at=time.time(), drill="test", kind="kill")


@contextmanager
def started(folder: Path, *args: str) -> Iterator[subprocess.Popen]:
    """A controller process; killed at the end whatever happens."""
    argv = [HOLDFAST, "controller", "--dir", str(folder), "--listen", "127.0.0.1:0", *args]
    with (folder.parent / "log").open("ab") as log:
        process = subprocess.Popen(argv, stderr=log, stdout=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def facts_of(folder: Path, process: subprocess.Popen) -> dict[str, object]:
    """Wait until `controller.json` is this process's."""
    deadline = time.monotonic() + LIMIT_S
    file = folder / "controller" / "controller.json"
    while time.monotonic() < deadline:
        assert process.poll() is None, (folder.parent / "log").read_text()
        if file.exists() and json.loads(file.read_bytes())["pid"] == process.pid:
            return json.loads(file.read_bytes())
        time.sleep(0.02)
    raise AssertionError("the controller was not ready in time")


def connect(folder: Path, process: subprocess.Popen) -> Client:
    facts = facts_of(folder, process)
    return Client(facts["url"], (folder / "controller" / "token").read_text().strip())


def test_a_killed_controller_is_succeeded_at_once_and_nothing_stored_is_lost(tmp_path: Path):
    """kill -9 right after the answer: the next controller starts without waiting for a lease and knows every event."""
    folder = tmp_path / "c"
    for round_ in range(2):
        with started(folder) as process, connect(folder, process) as client:
            client.ingest("drill:test", [mark(f"r{round_}.{n}") for n in range(50)])
            process.send_signal(signal.SIGKILL)
            process.wait()
    with started(folder) as process, connect(folder, process) as client:
        stored = [one.id for one in client.events(kind="drill_fired").events]
        assert stored == [f"drill:test/r{round_}.{n}" for round_ in range(2) for n in range(50)]
        seqs = [one.seq for one in client.events().events]
        assert seqs == list(range(1, len(seqs) + 1))
        assert client.state().health["epoch"] == 3
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0


def test_an_orderly_end_leaves_a_snapshot(tmp_path: Path):
    """SIGTERM and SIGINT end with 0, and the next start has a further epoch and the same history."""
    folder = tmp_path / "c"
    for number in (signal.SIGTERM, signal.SIGINT):
        with started(folder) as process, connect(folder, process) as client:
            client.ingest("drill:test", [mark(f"{number}")])
            process.send_signal(number)
            assert process.wait(LIMIT_S) == 0
            assert not (folder / "controller" / "controller.json").exists()  # the port is anybody's from now on
    log = (tmp_path / "log").read_text()
    assert "Traceback" not in log
    assert log.count("controller has ended") == 2


def test_a_controller_answers_its_own_user_at_its_socket(tmp_path: Path):
    """In a folder that a cluster has made for a group, too: the right of others to write in it is taken away."""
    place = tmp_path / "c" / "controller"
    place.mkdir(parents=True)
    place.chmod(0o775)
    with started(tmp_path / "c") as process:
        facts_of(tmp_path / "c", process)
        with Client(f"unix:{place / NAME}") as client:
            assert client.state().health["epoch"] == 1
        assert place.stat().st_mode & 0o777 == 0o755
        process.terminate()
        assert process.wait(LIMIT_S) == 0
    assert not (place / NAME).exists()


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
@pytest.mark.usefixtures("own_log")
def test_a_folder_that_others_may_write_is_refused(tmp_path: Path, mode: int):
    """They could exchange the journal and the tokens: one sentence names the command that mends it."""
    (tmp_path / "c").mkdir()
    (tmp_path / "c").chmod(mode)
    with pytest.raises(RefusedError, match=f"chmod go-w {re.escape(str(tmp_path / 'c'))}$"):
        controller(cluster_dir=tmp_path / "c", listen="127.0.0.1:0")


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user")
@pytest.mark.parametrize("which", ["", "controller"])
@pytest.mark.usefixtures("own_log")
def test_a_folder_of_another_user_is_refused(tmp_path: Path, which: str):
    """Its owner could read the operator's token, and write what the controller believes."""
    place = tmp_path / "c" / which
    place.mkdir(parents=True)
    os.chown(place, 4711, 4711)
    with pytest.raises(RefusedError, match=r"another user \(uid 4711\): run the controller as that user"):
        controller(cluster_dir=tmp_path / "c", listen="127.0.0.1:0")


@pytest.mark.usefixtures("own_log")
def test_a_pods_volume_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An emptyDir has the mode 0777: only the pod's containers see it."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    (tmp_path / "c").mkdir()
    (tmp_path / "c").chmod(0o777)
    with pytest.raises(HoldfastError, match="/nowhere"):
        controller(cluster_dir=tmp_path / "c", listen="127.0.0.1:0", policy=Path("/nowhere"))


def test_a_second_controller_of_the_same_folder_is_refused(tmp_path: Path):
    """Two in one folder would fence each other in turn; the second says who is there and ends."""
    folder = tmp_path / "c"
    with started(folder) as process:
        facts_of(folder, process)
        second = subprocess.run(
            [HOLDFAST, "controller", "--dir", str(folder)], capture_output=True, text=True, timeout=LIMIT_S
        )
        assert second.returncode == 69
        assert f"pid {process.pid}" in second.stderr
        assert "Traceback" not in second.stderr


def test_a_folder_without_locks_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """On a file system that has no locks, such as Lustre without `flock`, the lock's file and the reason are named."""

    def refuse(_fd: int, _how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(JournalError, match=r"lock cannot be taken: No locks available"), only_one(tmp_path):
        raise AssertionError


def test_a_standby_takes_over_when_the_leases_holder_is_gone(tmp_path: Path):
    """It waits while another controller of the same journal lives, and is ready soon after that one's lease has ended."""
    journal = f"sqlite:///{tmp_path}/shared.db"
    common = ("--journal", journal, "--lease-s", "2")
    with started(tmp_path / "a", *common) as first, connect(tmp_path / "a", first) as client:
        client.ingest("drill:test", [mark("x")])
        with started(tmp_path / "b", *common, "--standby") as second:
            deadline = time.monotonic() + LIMIT_S
            while "standing by" not in (tmp_path / "log").read_text():
                assert time.monotonic() < deadline
                time.sleep(0.05)
            first.kill()
            first.wait()
            with connect(tmp_path / "b", second) as heir:
                assert [one.id for one in heir.events(kind="drill_fired").events] == ["drill:test/x"]
                assert heir.state().health["epoch"] == 2


def test_the_policy_is_in_the_journal_and_read_again_on_sighup(tmp_path: Path):
    """A policy is stored when it is new, reloaded on SIGHUP; a wrong one is refused and the former holds."""
    folder, policy = tmp_path / "c", tmp_path / "policy.toml"
    policy.write_text('mode = "observe"\n')

    def loaded(client: Client, count: int) -> list[str]:
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            found = [one.toml for one in client.events(kind="policy_loaded").events]
            if len(found) >= count:
                return found
            time.sleep(0.02)
        raise AssertionError("the policy was not loaded in time")

    with started(folder, "--policy", str(policy)) as process, connect(folder, process) as client:
        assert loaded(client, 1) == ['mode = "observe"\n']
        policy.write_text('mod = "act"\n')
        os.kill(process.pid, signal.SIGHUP)
        deadline = time.monotonic() + LIMIT_S
        while "policy.toml:1" not in (tmp_path / "log").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        policy.write_text('mode = "act"\n')
        os.kill(process.pid, signal.SIGHUP)
        assert loaded(client, 2) == ['mode = "observe"\n', 'mode = "act"\n']
    with started(folder, "--policy", str(policy)) as process, connect(folder, process) as client:
        assert len(loaded(client, 2)) == 2


@pytest.fixture
def own_log() -> Iterator[None]:
    """The command sets up logging for its process; put it back."""
    yield
    structlog.reset_defaults()


@pytest.mark.parametrize(
    ("asked", "code", "said"),
    [
        ({"listen": "8470"}, 2, "write HOST:PORT"),
        ({"listen": "127.0.0.1:99999"}, 2, "write HOST:PORT"),
        ({"listen": "203.0.113.1:0"}, 2, "cannot listen on 203.0.113.1"),
        ({"cluster": "slurms:x"}, 2, "'slurms:x' is not known"),
        ({"journal": "mysql://x"}, 2, "kind 'mysql'"),
        ({"policy": Path("/nowhere")}, 78, "/nowhere"),
        ({"token_file": Path("/nowhere")}, 78, "token book cannot be read"),
        ({"cluster_dir": Path("/dev/null/x")}, 2, "cannot be made"),
    ],
)
@pytest.mark.usefixtures("own_log")
def test_bad_input_is_one_sentence(tmp_path: Path, asked: dict[str, object], code: int, said: str):
    """Each mistake names its place in one sentence and has the documented exit code."""
    with pytest.raises(HoldfastError, match=re.escape(said)) as caught:
        controller(**{"cluster_dir": tmp_path / "c", "listen": "127.0.0.1:0", **asked})
    assert caught.value.exit_code == code
    assert "\n" not in str(caught.value)


def test_a_wrong_key_in_the_policy_ends_the_command_with_its_line(tmp_path: Path):
    """From the process's outside: exit code 78, one sentence on stderr, no traceback."""
    policy = tmp_path / "policy.toml"
    policy.write_text('mode = "act"\nlimit = 3\n')
    done = subprocess.run(
        [HOLDFAST, "controller", "--dir", str(tmp_path / "c"), "--policy", str(policy)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 78
    assert "policy.toml:2" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_cluster_that_cannot_be_there_is_never_called_ready(tmp_path: Path):
    """A context that the kubeconfig does not know: exit code 78, one sentence, and no word of being ready before."""
    done = subprocess.run(
        [HOLDFAST, "controller", "--dir", str(tmp_path / "c"), "--cluster=kubernetes:WRONG", "--listen=127.0.0.1:0"],
        env={**os.environ, "KUBECONFIG": str(tmp_path / "none")},
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 78
    assert "WRONG" in done.stderr
    assert "controller is ready" not in done.stderr
    assert not (tmp_path / "c" / "controller" / "controller.json").exists()


def test_a_damaged_journal_is_refused(tmp_path: Path):
    """Nothing is done on the word of a file that cannot be trusted."""
    folder = tmp_path / "c" / "controller"
    folder.mkdir(parents=True)
    (folder / "journal.db").write_bytes(b"x" * 9000)
    done = subprocess.run(
        [HOLDFAST, "controller", "--dir", str(folder.parent)], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 70
    assert "is not a journal" in done.stderr
    assert "Traceback" not in done.stderr


def test_health_is_served_without_a_token_and_state_is_not(tmp_path: Path):
    """The default is closed: tokens are made on first start, readable by the owner only."""
    folder = tmp_path / "c"
    with started(folder) as process:
        url = str(facts_of(folder, process)["url"])
        assert httpx.get(url + "/healthz", trust_env=False).status_code == 200
        assert httpx.get(url + "/v1/state", trust_env=False).status_code == 401
        own = folder / "controller"
        assert own.stat().st_mode & 0o777 == 0o700
        modes = dict.fromkeys(("token", "agent-token", "tokens", "journal.db", "journal.db-wal", "lock"), 0o600)
        modes |= {"controller.json": 0o644, NAME: 0o666}
        assert {name: (own / name).stat().st_mode & 0o777 for name in modes} == modes, "as docs/security.md has them"


def test_addresses_and_clusters_are_understood():
    """Names, IPv4 and IPv6 with ports; the embedded cluster by its socket."""
    assert parse_listen("[::1]:0") == ("::1", 0)
    assert parse_listen("localhost:8470") == ("localhost", 8470)
    assert str(make_orchestrator("local:/x/cluster.sock").path) == "/x/cluster.sock"
    for bad in ("", ":1", "host:", "host:-1", "host:x"):
        with pytest.raises(UsageError):
            parse_listen(bad)


def test_a_controller_serves_with_what_token_ca_makes(tmp_path: Path):
    """Certificates by one command, mTLS by three lines; `--dir` needs none, by the socket; renewed without a restart."""
    folder, site = tmp_path / "c", tmp_path / "holdfast.toml"
    place = folder / "controller"
    make = [HOLDFAST, "token", "ca", "--dir", str(folder), "controller.example"]
    made = subprocess.run([*make, "--agent", "n1"], capture_output=True, text=True, timeout=LIMIT_S)
    assert (made.returncode, "[tls] cert = " in made.stderr) == (0, True), made.stderr
    files = {
        name: str(place / file)
        for name, file in {"cert": "server.crt", "key": "server.key", "client_ca": "ca.pem"}.items()
    }
    site.write_text("[tls]\n" + "".join(f"{name} = {json.dumps(path)}\n" for name, path in files.items()))
    with started(folder, "--config", str(site)) as process:
        url = facts_of(folder, process)["url"]
        named = {"TOKEN_FILE": "token", "CA_FILE": "ca.pem", "CERT_FILE": "agents/n1.pem"}
        env = os.environ | {f"HOLDFAST_{name}": str(place / file) for name, file in named.items()}
        ask = [HOLDFAST, "nodes", "--url", str(url), "--json"]
        assert subprocess.run(ask, capture_output=True, text=True, timeout=LIMIT_S, env=env).returncode == 0
        del env["HOLDFAST_CERT_FILE"]
        without = subprocess.run(ask, capture_output=True, text=True, timeout=LIMIT_S, env=env)
        assert without.returncode == 69
        local = [HOLDFAST, "nodes", "--dir", str(folder), "--json"]
        assert subprocess.run(local, capture_output=True, text=True, timeout=LIMIT_S).returncode == 0
        assert "Traceback" not in without.stderr
        assert subprocess.run(make, capture_output=True, timeout=LIMIT_S).returncode == 0
        deadline = time.monotonic() + LIMIT_S
        while "the certificate was renewed" not in (tmp_path / "log").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        trust = Trust(place / "ca.pem", place / "agents" / "n1.pem")
        with Client(str(url), (place / "token").read_text().strip(), trust=trust) as client:
            assert client.state().health["epoch"] == 1
    (place / "server.key").write_text("no key\n")
    with started(folder, "--config", str(site), "--standby") as process:
        assert process.wait(LIMIT_S) == 78
    assert "server.key: holds no private key in PEM form" in (tmp_path / "log").read_text()
