"""What the checks run and read: hung readers are replaced, real tools where they are here."""

import asyncio
import http.server
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest

from holdfast.adapters.clock import SystemClock
from holdfast.adapters.emulated import devices
from holdfast.adapters.emulated.faults import FAULTS, Hit
from holdfast.adapters.emulated.layout import Devices
from holdfast.adapters.probes import checks_tools
from holdfast.adapters.probes.check import Mode, NodeConfig, Status
from holdfast.adapters.probes.checks import CHECKS, SOURCES
from holdfast.adapters.probes.config import parse_config
from holdfast.adapters.probes.reach import Reach
from holdfast.adapters.probes.reader import STUCK_MAX, Reader
from holdfast.adapters.probes.rounds import Looker
from holdfast.os.programs import Program

RECORDED = Path(__file__).parent / "recorded"
GPUS = [(f"0000:{bus}:00", f"GPU-{bus}") for bus in ("53", "64", "75", "86", "97", "a8", "b9", "ca")]


def test_a_reading_process_that_is_stopped_is_replaced():
    """SIGSTOP stands for a process that hangs in the kernel: the ask ends at its limit, the next one is answered."""

    async def body():
        reader = Reader(os.environ)
        try:
            first = await reader.ask("node", 10.0, root="/")
            os.kill(reader._program.process.pid, signal.SIGSTOP)
            start = time.monotonic()
            hung = await reader.ask("node", 0.5, root="/")
            took = time.monotonic() - start
            return first, hung, took, await reader.ask("node", 10.0, root="/")
        finally:
            await reader.close()

    first, hung, took, after = asyncio.run(body())
    assert first.facts["cpus"] == after.facts["cpus"] >= 1
    assert (hung.hung, hung.facts) == (True, None)
    assert took < 3


def test_processes_that_cannot_be_killed_are_not_made_without_end(monkeypatch):
    """After three of them everything counts as failed, and no further process is started."""

    async def body():
        reader = Reader(os.environ)
        monkeypatch.setattr(Program, "kill", lambda program: None)
        asked = []
        try:
            for _ in range(STUCK_MAX + 2):
                await reader.ask("node", 10.0, root="/")
                if reader._program is not None:
                    os.kill(reader._program.process.pid, signal.SIGSTOP)
                asked.append(await reader.ask("node", 0.2, root="/"))
            return asked[-1].failed, len(reader._stuck)
        finally:
            for program in reader._stuck:
                os.kill(program.process.pid, signal.SIGKILL)
                await program.end()

    failed, stuck = asyncio.run(body())
    assert ("cannot be killed" in failed, stuck) == (True, STUCK_MAX)


def looked(reach, name, config=None, looks=1):
    async def body():
        looker = Looker(reach, config or NodeConfig(), clock=SystemClock())
        try:
            for _ in range(looks):
                (verdict,) = await looker.look(SOURCES[CHECKS[name].source], [CHECKS[name]], Mode.DEEP)
            return verdict
        finally:
            await reach.close()

    return asyncio.run(body())


@pytest.fixture
def folder(tmp_path):
    devices.prepare(tmp_path / "dev", GPUS, machine="i-1", booted="b-1")
    return tmp_path / "dev"


def test_dcgm_policy_is_followed(folder):
    """Violations between two looks are told at the second; the tool runs on in between and ends with the agent."""

    async def body():
        reach = Reach(devices.environment(folder, dict(os.environ)))
        reach.config = parse_config("dcgm_policy = true\n")
        source = SOURCES["dcgm-policy"]
        try:
            deadline = time.monotonic() + 90
            while (first := await source.read(reach)).hung:  # a busy machine starts it slowly
                assert time.monotonic() < deadline
            assert first.facts == ()
            with Devices(folder / "state") as found:
                FAULTS["pcie_replay"].apply(found, Hit(gpu=1, value=99))
            violations = ()
            while not violations:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)
                violations = (await source.read(reach)).facts
            return violations
        finally:
            await reach.close()

    (violation,) = asyncio.run(body())
    assert (violation.kind, violation.value) == ("pcie", 99)


@pytest.mark.parametrize(
    ("fault", "status", "said"),
    [
        ("nvml_hang", Status.UNKNOWN, "said nothing within 1 s"),
        ("nvml_refused", Status.UNKNOWN, "Insufficient permissions"),
        ("driver_unloaded", Status.ABSENT, "host engine does not run"),
    ],
)
def test_a_dcgm_policy_that_cannot_be_followed_is_not_well(folder, fault, status, said):
    """Silence, a refusal and a missing host engine are told as such, not as a node without violations."""
    with Devices(folder / "state") as found:
        FAULTS[fault].apply(found, Hit())
    limit_s = 1 if fault == "nvml_hang" else 30
    config = parse_config(f"dcgm_policy = true\n[checks.dcgm-policy]\nlimit_s = {limit_s}\n")
    verdict = looked(Reach(devices.environment(folder, dict(os.environ))), "dcgm-policy", config)
    assert (verdict.status, said in verdict.detail) == (status, True), verdict


def test_diag_and_health_of_the_emulated_dcgm(folder):
    """The parsers read what the emulated tool prints as they read the real one's."""
    with Devices(folder / "state") as found:
        FAULTS["row_remap"].apply(found, Hit(gpu=3))
    for name in ("dcgm-diag-2", "dcgm-health", "nvidia-smi"):
        verdict = looked(Reach(devices.environment(folder, dict(os.environ))), name)
        assert verdict.status is (Status.OK if name == "nvidia-smi" else Status.CRITICAL), verdict
    assert looked(Reach({"PATH": "/nowhere"}), "dcgm-diag-2").status is Status.ABSENT


def test_the_exporter_is_scraped_over_http():
    """A page of dcgm-exporter; a server that is not there is unknown, not a fault."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write((RECORDED / "dcgm_exporter_4_580.txt").read_bytes())

        def log_message(self, *args):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        config = NodeConfig(dcgm_exporter=f"http://127.0.0.1:{server.server_port}/metrics")
        assert looked(Reach({}), "dcgm-exporter", config).status is Status.OK
        server.shutdown()
    assert looked(Reach({}), "dcgm-exporter", config).status is Status.UNKNOWN
    other = NodeConfig(dcgm_exporter="file:///etc/passwd")
    assert looked(Reach({}), "dcgm-exporter", other).status is Status.UNKNOWN


def test_stress_on_this_machine(monkeypatch):
    """The real stress-ng for a second, where it is installed; elsewhere not applicable."""
    monkeypatch.setattr(checks_tools, "STRESS_S", 1)
    verdict = looked(Reach(dict(os.environ)), "cpu-stress")
    assert verdict.status is (Status.OK if shutil.which("stress-ng") else Status.ABSENT), verdict


def test_disks_and_mounts_of_this_machine(tmp_path):
    """A required mount that is not there, a folder that cannot be written, through the real reading process."""
    config = parse_config(
        f'[profile]\nmounts = ["/", "/no/such/mount"]\nwrite_probe = ["{tmp_path}", "{tmp_path}/none"]\n'
    )
    missing = looked(Reach(dict(os.environ)), "mounts", config)
    assert (missing.status, missing.detail) == (Status.CRITICAL, "/no/such/mount is not mounted")
    write = looked(Reach(dict(os.environ)), "disk-write", config)
    assert (write.status, [p.place.path for p in write.problems]) == (Status.CRITICAL, [f"{tmp_path}/none"])


def test_services_without_systemd(tmp_path):
    """By the names of processes: one that runs, one that does not."""
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/comm").write_text("slurmd\n")
    config = parse_config('[profile]\nservices = ["slurmd", "munged"]\n')
    verdict = looked(Reach({"PATH": "/nowhere"}, root=tmp_path), "services", config)
    assert (verdict.status, verdict.detail) == (Status.CRITICAL, "the service munged is not running")


def test_a_stale_network_mount_of_another_tree(tmp_path):
    """A mount point that statvfs refuses: the handle is stale, the file system does not answer."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text("24 22 0:40 / /no/such/nfs rw - nfs4 srv:/home rw\n")
    verdict = looked(Reach(dict(os.environ), root=tmp_path), "mount-stale")
    assert (verdict.status, verdict.problems[0].rule) == (Status.CRITICAL, "check.mount_stale")
