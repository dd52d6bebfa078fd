"""Kernel-log lines to findings: once each, over restarts, rotation and noise; folded when they repeat."""

import asyncio
import time
from pathlib import Path

import pytest

from holdfast.adapters.catalogue_files import read_catalogue, read_matcher
from holdfast.adapters.clock import SystemClock
from holdfast.adapters.kernel_record import Record
from holdfast.agent.kernel_log import KernelLog
from holdfast.agent.node_facts import GpuTable, NodeIdentity
from holdfast.detect.matcher import Matcher
from parsers import ParserInside

XID = "[   12.000000] NVRM: Xid (PCI:0000:b9:00): {}, pid=1, some words\n"


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    return read_matcher(read_catalogue())


class Watch:
    """A kernel log on a file, and what came of it."""

    def __init__(
        self,
        folder: Path,
        matcher: Matcher,
        boot_id: str = "boot-1",
        *,
        is_syslog: bool = False,
        pci: str = "0000:b9:00",
    ) -> None:
        self.path = folder / ("messages" if is_syslog else "kmsg")
        self.path.touch()
        self.found = []
        self.log = KernelLog(
            self.path,
            identity=NodeIdentity(name="node07", boot_id=boot_id),
            gpus=GpuTable({pci: 6}),
            parser=ParserInside(matcher),
            clock=SystemClock(),
            on_finding=self.found.append,
            bookmark=folder / "bookmark.json",
            is_syslog=is_syslog,
        )

    def write(self, text: str) -> None:
        with self.path.open("a") as log:
            log.write(text)

    def rules(self) -> list[str]:
        return [finding.rule for finding in self.found]

    async def until(self, count: int) -> None:
        deadline = time.monotonic() + 5
        while len(self.found) < count:
            assert time.monotonic() < deadline, self.rules()
            await asyncio.sleep(0.002)


def test_a_line_is_found_once_over_a_restart(tmp_path: Path, matcher: Matcher) -> None:
    """The next agent of the same boot goes on behind the last whole line; ids stay unique and are the same if repeated."""

    async def body() -> None:
        first = Watch(tmp_path, matcher)
        first.write(XID.format(79))
        first.log.start()
        await first.until(1)
        half = XID.format(74)
        first.write(half[:20])
        await asyncio.sleep(0.02)
        first.log.close()
        second = Watch(tmp_path, matcher)
        second.write(half[20:])
        second.log.start()
        await second.until(1)
        assert (first.rules(), second.rules()) == (["nvidia.xid.79"], ["nvidia.xid.74"])
        second.log.close()
        (tmp_path / "bookmark.json").unlink()
        third = Watch(tmp_path, matcher)
        third.log.start()
        await third.until(2)
        third.log.close()
        assert [f.id for f in third.found] == [first.found[0].id, second.found[0].id]
        assert third.found[0].place.gpu == 6

    asyncio.run(body())


def test_another_boot_begins_at_the_first_line(tmp_path: Path, matcher: Matcher) -> None:
    """A bookmark of an earlier boot is not used, and the same line under a new boot is another finding."""

    async def body() -> None:
        first = Watch(tmp_path, matcher)
        first.write(XID.format(79))
        first.log.start()
        await first.until(1)
        first.log.close()
        second = Watch(tmp_path, matcher, boot_id="boot-2")
        second.log.start()
        await second.until(1)
        second.log.close()
        assert first.found[0].id != second.found[0].id

    asyncio.run(body())


def test_a_file_of_syslog_is_read_on_after_a_boot(tmp_path: Path, matcher: Matcher) -> None:
    """The file outlives the boot: what an agent has read stays read; what is old when it is first seen is history."""

    def line(ago_s: float, xid: int) -> str:
        return time.strftime("%b %e %H:%M:%S n1 kernel: ", time.localtime(time.time() - ago_s)) + XID.format(xid)

    async def body() -> None:
        first = Watch(tmp_path, matcher, is_syslog=True)
        first.write(line(86400, 79) + line(1, 74) + line(1, 73).replace("kernel", "mytool"))
        first.log.start()
        await first.until(1)
        first.log.close()
        second = Watch(tmp_path, matcher, boot_id="boot-2", is_syslog=True)
        second.write(line(86400, 79) + line(1, 73))
        second.log.start()
        await second.until(1)
        second.log.close()
        assert (first.rules(), second.rules()) == (["nvidia.xid.74"], ["nvidia.xid.73"])
        assert ":boot-2:messages" in second.found[0].id

    asyncio.run(body())


def test_rotation_keeps_ids_unique(tmp_path: Path, matcher: Matcher) -> None:
    """The first line of the new file does not get the id of the first line of the old one."""

    async def body() -> None:
        watch = Watch(tmp_path, matcher)
        watch.write(XID.format(79))
        watch.log.start()
        await watch.until(1)
        watch.path.rename(tmp_path / "kmsg.1")
        watch.write(XID.format(79))
        await watch.until(2)
        watch.log.close()
        assert watch.found[0].id != watch.found[1].id

    asyncio.run(body())


def test_a_flood_is_folded(tmp_path: Path, matcher: Matcher) -> None:
    """Thousands of the same line give at most the rule's rate of findings."""

    async def body() -> None:
        watch = Watch(tmp_path, matcher)
        watch.write(XID.format(79) * 5000 + XID.format(48))
        watch.log.start()
        await watch.until(2)
        deadline = time.monotonic() + 5
        while "nvidia.xid.48" not in watch.rules():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        watch.log.close()
        assert watch.rules().count("nvidia.xid.79") <= 60

    asyncio.run(body())


def test_a_line_cannot_speak_for_another_node(tmp_path: Path, matcher: Matcher) -> None:
    """Whatever host name stands in the line, the place is the node whose kernel wrote it."""

    async def body() -> None:
        watch = Watch(tmp_path, matcher)
        watch.write("Nov 20 18:00:00 node99 kernel: NVRM: Xid (PCI:0000:b9:00): 79, GPU has fallen off the bus.\n")
        watch.log.start()
        await watch.until(1)
        watch.log.close()
        assert watch.found[0].place.node == "node07"

    asyncio.run(body())


def test_records_of_the_device_are_named_by_their_sequence_number(tmp_path: Path, matcher: Matcher) -> None:
    """A device's finding has the record's own time and an id that a second reading would give again."""

    async def body() -> None:
        text = b"NVRM: Xid (PCI:0000:b9:00): 79, GPU has fallen off the bus."
        watch.log.on_record(Record(41, 1.0, b"nothing"), 100.0)
        watch.log.on_record(Record(42, 1.5, text), 100.5)
        watch.log.close()

    watch = Watch(tmp_path, matcher)
    asyncio.run(body())
    (finding,) = watch.found
    assert (finding.rule, finding.at, finding.place.gpu) == ("nvidia.xid.79", 100.5, 6)
    assert finding.id == "node07:boot-1:kernel:42:nvidia.xid.79"


ON_H200 = """\
[  264.593083] NVRM: GPU at PCI:0000:00:06: GPU-7fd01dca-9392-9766-f5e2-636b44c401ff
[  264.593092] NVRM: GPU Board Serial Number: 1653724027137
[  264.593093] NVRM: Xid (PCI:0000:00:06): 43, pid=1073, name=python3, channel 0x0000000b
[  265.980167] NVRM: Xid (PCI:0000:00:06): 13, Graphics SM Warp Exception on (GPC 0, TPC 8, SM 0): Misaligned Address
[  265.981654] NVRM: Xid (PCI:0000:00:06): 13, Graphics Exception: ESR 0x50d730=0x502000f 0x50d734=0x0 0x50d728=0x1f81fb60 0x50d72c=0x1174
[  265.983211] NVRM: Xid (PCI:0000:00:06): 13, pid=1082, name=python3, Graphics Exception: channel 0x00000046, Class 0000cbc0, Offset 00000000, Data 00000000
[  266.999541] NVRM: Xid (PCI:0000:00:06): 31, pid=1067, name=python3, channel 0x00000082, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC0 GPCCLIENT_T1_16 faulted @ 0x8352_22400000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE
"""


def test_what_a_real_driver_wrote_when_programs_failed(tmp_path: Path, matcher: Matcher) -> None:
    """Recorded on an H200, driver 580.159.04: an assertion in a kernel, a misaligned address, an illegal one. The driver
    blames the programs, so that none of it is the GPU's fault, and all of it is placed on the GPU."""

    async def body() -> None:
        watch = Watch(tmp_path, matcher, pci="0000:00:06.0")
        watch.write(ON_H200)
        watch.log.start()
        await watch.until(5)
        watch.log.close()
        told = [(found.rule, found.domain.value, found.place.gpu) for found in watch.found]
        assert told == [(f"nvidia.xid.{code}", "application", 6) for code in (43, 13, 13, 13, 31)]

    asyncio.run(body())
