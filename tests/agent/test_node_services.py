"""What an agent does besides reading its kernel log: figures, further logs, no permission, an hour alone, reload."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from agent.fake_controller import FakeController
from holdfast.adapters.catalogue_files import read_catalogue, read_matcher
from holdfast.adapters.clock import SystemClock
from holdfast.adapters.emulated import devices
from holdfast.adapters.emulated.faults import FAULTS, Hit
from holdfast.adapters.emulated.layout import Devices
from holdfast.adapters.kernel_journal import JOURNAL
from holdfast.adapters.probes.check import LogFile, NodeConfig
from holdfast.adapters.probes.config import parse_config
from holdfast.adapters.probes.reach import Reach
from holdfast.adapters.probes.rounds import Looker
from holdfast.agent import process
from holdfast.agent.controller_link import ControllerLink
from holdfast.agent.job_logs import open_log
from holdfast.agent.node_facts import GpuTable, NodeIdentity
from holdfast.agent.node_loop import AgentSettings, NodeAgent
from holdfast.client import Spool
from holdfast.detect.matcher import Matcher
from holdfast.errors import ConfigError, UsageError
from holdfast.model.events import FindingCleared, FindingSeen
from holdfast.model.evidence import Role
from holdfast.model.wire import ControllerAddress
from parsers import ParserInside

GPUS = [(f"0000:{bus}:00", f"GPU-{bus}") for bus in ("53", "64", "75", "86", "97", "a8", "b9", "ca")]
XID_79 = "NVRM: Xid (PCI:0000:53:00): 79, pid=1234, GPU has fallen off the bus.\n"


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    return read_matcher(read_catalogue())


@pytest.fixture
def gpus(tmp_path):
    devices.prepare(tmp_path / "dev", GPUS, machine="i-1", booted="b-1")
    return tmp_path / "dev"


def make(tmp_path, url, matcher, *, gpus=None, kernel_log=None, config="poll_s = 0.2\n", **settings):
    (tmp_path / "kmsg").touch()
    looker = None
    if gpus is not None:
        reach = Reach(devices.environment(gpus, dict(os.environ)), emulated=True)
        looker = Looker(reach, parse_config(config), clock=SystemClock())
    return NodeAgent(
        AgentSettings(kernel_log=kernel_log or tmp_path / "kmsg", state_dir=tmp_path / "state", beat_s=0.05, **settings),
        identity=NodeIdentity(name="node07", boot_id="boot-1", instance_id="i-1"),
        gpus=GpuTable({}), parser=ParserInside(matcher), clock=SystemClock(), controller=ControllerLink(url), looker=looker,
    )  # fmt: skip


def run(body):
    async def whole():
        controller = FakeController()
        work: list[asyncio.Task] = []
        try:
            await body(controller, lambda agent: work.append(asyncio.create_task(agent.run())))
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            await controller.stop()

    asyncio.run(whole())


async def until(holds, limit_s=20.0):
    deadline = time.monotonic() + limit_s
    while not (found := holds()):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    return found


def rules(controller):
    return [event.finding.rule for event in controller.of(FindingSeen)]


def test_metrics_and_health(tmp_path, gpus, matcher):
    """Prometheus text with each check's word and each GPU's temperature; 200 while it does its work; nothing else."""

    async def body(controller, start):
        agent = make(tmp_path, await controller.start(), matcher, gpus=gpus, metrics="127.0.0.1:0")
        start(agent)
        await until(lambda: agent.metrics_at and agent.health.verdicts.get("gpu-ecc") and agent.heard)
        async with httpx.AsyncClient(base_url=f"http://{agent.metrics_at}", trust_env=False) as client:
            page = (await client.get("/metrics")).text
            assert 'holdfast_check_status{check="gpu-ecc"} 0.0' in page
            assert 'holdfast_gpu_temperature_celsius{gpu="7",uuid="GPU-ca"} 41.0' in page
            assert "holdfast_agent_controller_heard 1.0" in page
            assert (await client.get("/healthz")).text == "ok\n"
            assert [(await client.get("/other")).status_code, (await client.post("/metrics")).status_code] == [404, 405]
            with Devices(gpus / "state") as found:
                FAULTS["row_remap"].apply(found, Hit(gpu=1))
            await until(lambda: "check.gpu_row_remap_failed" in rules(controller))
            assert 'holdfast_check_status{check="gpu-remap"} 2.0' in (await client.get("/metrics")).text

    run(body)


def test_a_taken_address_costs_the_figures_only(tmp_path, matcher):
    """Somebody else listens there: the agent goes on without."""

    async def body(controller, start):
        url = await controller.start()
        agent = make(tmp_path, url, matcher, metrics=url.removeprefix("http://"))
        start(agent)
        await until(lambda: agent.heard)
        assert agent.metrics_at == ""

    run(body)


def test_an_address_for_metrics_that_is_none(tmp_path, matcher):
    """Said at the start, with an example."""
    with pytest.raises(UsageError, match=r"not HOST:PORT"):
        make(tmp_path, "http://x", matcher, metrics="9471")


def test_without_permission_to_read_the_kernel_log(tmp_path, gpus, matcher, monkeypatch):
    """It says so once, as context, goes on checking, tells Xids by NVML instead, and takes up the log when it may."""
    missing = tmp_path / "device" / "kmsg"
    monkeypatch.setattr("holdfast.agent.node_loop.KERNEL_LOG_AGAIN_S", 0.3)
    # A character device that may not be opened: /dev/kmsg of an agent without root.
    monkeypatch.setattr(Path, "is_char_device", lambda path: path == missing and not missing.exists())

    async def body(controller, start):
        agent = make(tmp_path, await controller.start(), matcher, gpus=gpus, kernel_log=missing)
        start(agent)
        await until(lambda: "check.blind" in rules(controller) and "gpu-xid" in agent.health.verdicts)
        assert "cannot be read" in agent.unwell()
        (blind,) = [e.finding for e in controller.of(FindingSeen) if e.finding.rule == "check.blind"]
        assert blind.role is Role.CONTEXT
        with Devices(gpus / "state") as found:
            FAULTS["xid"].apply(found, Hit(gpu=2, value=79))
        await until(lambda: "nvidia.xid.79" in rules(controller))
        missing.parent.mkdir()
        missing.write_text(XID_79.replace(": 79", ": 48"))
        await until(lambda: "nvidia.xid.48" in rules(controller))
        assert [e.rule for e in controller.of(FindingCleared)] == ["check.blind"]
        assert agent.unwell() == ""

    run(body)


def test_job_output_is_context_and_scheduler_logs_are_not(tmp_path, matcher):
    """A job may print anything; what stood there before is history; a file that comes later is read from its start."""
    job, slurm = tmp_path / "job-1.out", tmp_path / "slurmctld.log"
    job.write_text("RuntimeError: CUDA error: unknown hardware error\n")
    slurm.write_text("")

    async def body(controller, start):
        logs = (LogFile(path=f"{tmp_path}/job-*.out"), LogFile(path=str(slurm), kind="scheduler"))
        agent = make(tmp_path, await controller.start(), matcher, logs=logs)
        start(agent)
        await until(lambda: agent.job_logs._streams and agent.heard)
        assert rules(controller) == []
        with job.open("a") as file:
            file.write("Unable to determine the device handle for GPU 0000:5D:00.0: Unknown Error\n")
        with slurm.open("a") as file:
            file.write("slurmctld: error: Nodes node07 not responding, setting DOWN\n")
        await until(lambda: len(rules(controller)) >= 1)
        (seen,) = [e.finding for e in controller.of(FindingSeen) if e.finding.place.path == str(job)]
        assert (seen.rule, seen.role) == ("nvidia.smi.lost", Role.CONTEXT)
        (tmp_path / "job-2.out").write_text(
            "Unable to determine the device handle for GPU 0000:5E:00.0: Unknown Error\n"
        )
        agent.job_logs.find()
        await until(lambda: [e for e in controller.of(FindingSeen) if e.finding.place.path.endswith("job-2.out")])

    run(body)


def test_an_hour_without_a_controller(tmp_path, gpus, matcher):
    """Findings wait on disk, bounded; the oldest go first; how many went is told when the controller is back."""

    async def body(controller, start):
        agent = make(tmp_path, "http://127.0.0.1:9", matcher, gpus=gpus)
        agent.reporter.spool = Spool(tmp_path / "state" / "spool.jsonl", bytes_max=64_000)
        start(agent)
        await until(lambda: "gpu-ecc" in agent.health.verdicts)
        # An hour of one chatty node: more Xids of different kinds than the spool holds.
        with (tmp_path / "kmsg").open("a") as log:
            for round_ in range(10):
                for code in range(31, 96):
                    log.write(XID_79.replace(": 79", f": {code}").replace("1234", str(round_)))
        await until(lambda: agent.reporter.spool.dropped > 20)
        with Devices(gpus / "state") as found:
            FAULTS["row_remap"].apply(found, Hit(gpu=1))
        await until(lambda: any(b"check.gpu_row_remap_failed" in one for one in agent.reporter.spool.first(10_000)))
        assert (tmp_path / "state" / "spool.jsonl").stat().st_size > 10_000
        assert sum(map(len, agent.reporter.spool.first(10_000))) <= 64_000
        dropped = agent.reporter.spool.dropped
        address = await controller.start()
        agent._controller.address = ControllerAddress(address)
        await until(lambda: {"check.gpu_row_remap_failed", "check.spool_dropped"} <= set(rules(controller)))
        (told,) = [e.finding for e in controller.of(FindingSeen) if e.finding.rule == "check.spool_dropped"]
        assert (told.summary.split()[0], told.role) == (str(dropped), Role.CONTEXT)

    run(body)


def test_sighup_reads_the_configuration_again(tmp_path):
    """A real agent process: a wrong file changes nothing and is told; a right one switches a check off."""
    config = tmp_path / "agent.toml"
    config.write_text("poll_s = 0.2\n")
    argv = [sys.executable, "-m", "holdfast.cli.main", "agent", "--controller", "http://127.0.0.1:9", "--node", "n1"]
    argv += ["--kernel-log", str(tmp_path / "kmsg"), "--state-dir", str(tmp_path / "state"), "--config", str(config)]
    (tmp_path / "kmsg").touch()
    log = tmp_path / "log"
    with log.open("wb") as out, subprocess.Popen(argv, stdout=out, stderr=out) as running:
        try:
            assert waited(lambda: b"check not applicable" in log.read_bytes()), log.read_text()
            for text, said in (("pol_s = 1\n", 'did you mean "poll_s"'), ('disable = ["gpu-*"]\n', "was read again")):
                config.write_text(text)
                running.send_signal(signal.SIGHUP)
                assert waited(lambda said=said: said in log.read_text()), log.read_text()
            assert running.poll() is None
        finally:
            running.terminate()
            running.wait(10)


def waited(holds, limit_s=30.0):
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.05)
    return False


def test_the_preset_alone_has_messages_read(tmp_path):
    """agent.toml of an embedded node lies in its folder; a preset that agents do not know is refused by name."""
    options = process.AgentOptions(node_dir=tmp_path, controller="http://127.0.0.1:1")
    assert process.messages_file(options, process.read_config(options)) is None
    file = tmp_path / "etc/holdfast/agent.toml"
    file.parent.mkdir(parents=True)
    file.write_text('preset = "hyperpod-eks"\n')
    config = process.read_config(options)
    assert process.messages_file(options, config) == tmp_path / "var/log/messages"
    assert config.validate == process.EMBEDDED_VALIDATION
    file.write_text('preset = "hyperpod"\n')
    with pytest.raises(ConfigError, match='preset cannot be "hyperpod"; known: hyperpod-eks'):
        process.read_config(options)


def test_the_first_kernel_log_that_may_be_read(tmp_path, monkeypatch):
    """The device, then the journal, which this machine has not, and last the files in which any user writes."""
    monkeypatch.setattr(process, "DEFAULT_KERNEL_LOG", tmp_path / "kmsg")
    monkeypatch.setattr(process, "SYSLOGS", (tmp_path / "kern.log", tmp_path / "messages"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert process.find_kernel_log() == process.DEFAULT_KERNEL_LOG
    (tmp_path / "messages").write_text("")
    assert process.find_kernel_log() == tmp_path / "messages"
    (tmp_path / "journalctl").write_text("#!/bin/sh\necho Linux version 6.1\n")
    (tmp_path / "journalctl").chmod(0o755)
    assert process.find_kernel_log() == JOURNAL
    (tmp_path / "kmsg").write_text("")
    assert process.find_kernel_log() == tmp_path / "kmsg"


def test_defaults_need_no_file():
    """An agent without agent.toml checks everything, every 15 seconds."""
    assert (NodeConfig().poll_s, NodeConfig().disable, NodeConfig().metrics) == (15.0, (), "")


def test_a_log_that_is_named_from_the_agents_own_folder_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`[[logs]]` may name `job.log`: it is followed, and does not end the agent."""
    (tmp_path / "job.log").write_text("step 1\n")
    monkeypatch.chdir(tmp_path)
    opened = open_log(Path("job.log"))
    assert os.read(opened, 100) == b"step 1\n"
    os.close(opened)
