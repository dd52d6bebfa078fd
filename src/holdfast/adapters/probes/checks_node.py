"""Checks of the machine itself: file systems, memory, processors, clock, services, left-over processes, PCI topology.

Judging is pure; the sources read through `Reach`. A file system of another machine is asked in a reading process with a
limit of its own: that it does not answer is what the check is for.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from holdfast.adapters.probes import tool_output
from holdfast.adapters.probes.check import ANY_TIME, Check, Judging, Mode, Problem, Reading, Source
from holdfast.adapters.probes.facts import MemoryControllerFacts, MountFacts, NodeFacts, PciFacts, ProcessFacts
from holdfast.adapters.probes.reach import Reach, limit
from holdfast.adapters.probes.sysfs_reading import NETWORK
from holdfast.model.evidence import Place

READ_LIMIT_S = 5.0
MOUNT_LIMIT_S = 5.0
"""A file system over the network that needs longer for `statvfs` does not answer."""
WRITE_LIMIT_S = 20.0
TIMED_OUT = "timed out"
NO_SYSTEMD = "not been booted with systemd"
_JOURNALLED = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs"})
"""File systems that turn read-only when they are damaged."""
_LOCAL = (*_JOURNALLED, "tmpfs", "zfs", "overlay")


async def _node(reach: Reach) -> Reading:
    return await reach.read("node", NodeFacts, READ_LIMIT_S)


async def _edac(reach: Reach) -> Reading:
    return await reach.read("edac", tuple[MemoryControllerFacts, ...], READ_LIMIT_S)


async def _pci(reach: Reach) -> Reading:
    return await reach.read("pci", tuple[PciFacts, ...], READ_LIMIT_S)


async def _processes(reach: Reach) -> Reading:
    return await reach.read("processes", tuple[ProcessFacts, ...], READ_LIMIT_S, job=reach.job)


async def _mounts(reach: Reach) -> Reading:
    """The mounts; those of other machines are asked one by one, each within MOUNT_LIMIT_S."""
    reading = await reach.read("mounts", tuple[MountFacts, ...], READ_LIMIT_S)
    if reading.facts is None:
        return reading
    asked = []
    for mount in reading.facts:
        one = mount
        if mount.kind.startswith(NETWORK):
            answer = await reach.files.ask("statvfs", limit(MOUNT_LIMIT_S), point=mount.point)
            known = answer.facts if isinstance(answer.facts, dict) else {}
            one = MountFacts(
                point=mount.point,
                kind=mount.kind,
                device=mount.device,
                read_only=mount.read_only,
                total=int(known.get("total", 0)),
                free=int(known.get("free", 0)),
                error=TIMED_OUT if answer.hung else str(known.get("error", "")) or answer.failed,
            )
        asked.append(one)
    return msgspec.structs.replace(reading, facts=tuple(asked))


class WriteFacts(Struct, frozen=True):
    """How writing in a folder went: empty when well."""

    folder: str
    error: str


async def _write(reach: Reach) -> Reading:
    folders = reach.profile.write_probe
    if not folders:
        return Reading(absent="no folder is named in profile.write_probe")
    found = []
    for folder in folders:
        answer = await reach.files.ask("write", limit(WRITE_LIMIT_S), folder=folder)
        known = answer.facts if isinstance(answer.facts, dict) else {}
        found.append(WriteFacts(folder, TIMED_OUT if answer.hung else str(known.get("error", "")) or answer.failed))
    return Reading(facts=tuple(found))


async def _services(reach: Reach) -> Reading:
    names = reach.profile.services
    if not names:
        return Reading(absent="no service is named in profile.services")
    ran = await reach.run(("systemctl", "is-active", *names), 10.0)
    if ran.absent if isinstance(ran, Reading) else NO_SYSTEMD in ran.err:
        running = await reach.read("running", list[str], READ_LIMIT_S)
        if running.facts is None:
            return running
        # The kernel keeps fifteen characters of a process's name.
        return Reading(facts={name: "active" if name[:15] in running.facts else "not running" for name in names})
    if isinstance(ran, Reading):
        return ran
    words = tool_output.parse_active(names, ran.out)
    if not words:
        return Reading(failed=f"systemctl: {ran.err.strip()[:200]}")
    return Reading(facts=words, seconds=ran.seconds)


async def _chrony(reach: Reach) -> Reading:
    ran = await reach.run(("chronyc", "-n", "-c", "tracking"), 5.0)
    if isinstance(ran, Reading):
        return ran
    tracking = tool_output.parse_tracking(ran.out)
    if tracking is None:
        return Reading(failed=f"chronyc: {(ran.out or ran.err).strip()[:200]}")
    return Reading(facts=tracking, seconds=ran.seconds)


NODE_SOURCES = (
    Source(name="node", about="/proc and /sys", needs="Linux", limit_s=READ_LIMIT_S, read=_node),
    Source(name="edac", about="/sys/devices/system/edac", needs="an EDAC driver", limit_s=READ_LIMIT_S, read=_edac),
    Source(
        name="mounts", about="mounted file systems, by statvfs", needs="Linux", limit_s=60.0, read=_mounts, every_s=30.0
    ),
    Source(
        name="write",
        about="a small file, written and read back",
        needs="profile.write_probe",
        limit_s=60.0,
        read=_write,
        every_s=60.0,
    ),
    Source(
        name="services",
        about="systemctl is-active, else processes by name",
        needs="profile.services",
        limit_s=15.0,
        read=_services,
        every_s=60.0,
    ),
    Source(name="chrony", about="chronyc tracking", needs="chrony", limit_s=10.0, read=_chrony, every_s=60.0),
    Source(
        name="processes",
        about="/proc",
        needs="root, to see other users' processes",
        limit_s=READ_LIMIT_S,
        read=_processes,
    ),
    Source(name="pci", about="/sys/bus/pci", needs="a PCI bus", limit_s=READ_LIMIT_S, read=_pci, every_s=300.0),
)


def space(facts: tuple[MountFacts, ...], judging: Judging) -> list[Problem]:
    """File systems of this machine that are full, or nearly."""
    problems = []
    limits = judging.limits
    for mount in facts:
        if mount.kind not in _LOCAL or not mount.total or mount.read_only:
            continue
        percent = 100 * mount.free / mount.total
        full = mount.free < min(limits.disk_free_mib * 2**20, limits.disk_free_percent * mount.total / 100)
        if full or percent < limits.disk_warn_percent:
            word = "full" if full else "nearly full"
            summary = f"the file system of {mount.point} is {word}: {mount.free >> 20} MiB are left ({percent:.1f} %)"
            rule = "check.disk_full" if full else "check.disk_low"
            problems.append(
                Problem(rule=rule, summary=summary, place=Place(path=mount.point), text=summary, warning=not full)
            )
    return problems


def read_only(facts: tuple[MountFacts, ...], judging: Judging) -> list[Problem]:
    """File systems that are read-only now and were not at the first look: the kernel does that when one is damaged."""
    problems = []
    for mount in facts:
        key = f"ro:{mount.point}"
        if mount.kind not in _JOURNALLED:
            continue
        before = judging.learned.setdefault(key, "ro" if mount.read_only else "rw")
        required = mount.point in judging.profile.mounts or mount.point in judging.profile.write_probe
        if mount.read_only and (before == "rw" or required):
            summary = f"the file system of {mount.point} ({mount.device}) has become read-only"
            problems.append(
                Problem(rule="check.disk_read_only", summary=summary, place=Place(path=mount.point), text=summary)
            )
    return problems


def stale(facts: tuple[MountFacts, ...], judging: Judging) -> list[Problem]:
    """File systems of other machines that do not answer, or whose handle is stale."""
    del judging
    return [
        Problem(
            rule="check.mount_stale",
            summary=f"{mount.point} ({mount.kind} of {mount.device}) does not answer: {mount.error}",
            place=Place(path=mount.point),
            text=mount.error,
        )
        for mount in facts
        if mount.error and mount.kind.startswith(NETWORK)
    ]


def required_mounts(facts: tuple[MountFacts, ...], judging: Judging) -> list[Problem]:
    """Mount points of the profile that are not mounted."""
    there = {mount.point for mount in facts}
    return [
        Problem(rule="check.mount_missing", summary=f"{point} is not mounted", place=Place(path=point), text=point)
        for point in judging.profile.mounts
        if point not in there
    ]


def write(facts: tuple[WriteFacts, ...], judging: Judging) -> list[Problem]:
    """Folders that do not take a file. A full one is the matter of `disk-space`."""
    del judging
    return [
        Problem(
            rule="check.disk_full" if "No space left" in one.error else "check.disk_write",
            summary=f"{one.folder} cannot be written: {one.error}",
            place=Place(path=one.folder),
            text=one.error,
        )
        for one in facts
        if one.error
    ]


def memory(facts: NodeFacts, judging: Judging) -> list[Problem]:
    """Memory that is missing, or nearly used up."""
    problems = []
    least = judging.profile.memory_gib
    if least is not None and facts.memory_total < least * 2**30:
        summary = f"{facts.memory_total / 2**30:.1f} GiB of memory, not {least:g}"
        problems.append(Problem(rule="check.memory_missing", summary=summary, text=summary))
    percent = 100 * facts.memory_available / facts.memory_total if facts.memory_total else 100.0
    if percent < judging.limits.memory_free_percent:
        summary = f"{facts.memory_available >> 20} MiB of memory are left ({percent:.1f} %)"
        problems.append(Problem(rule="check.memory_low", summary=summary, text=summary, warning=True))
    return problems


def edac(facts: tuple[MemoryControllerFacts, ...], judging: Judging) -> list[Problem]:
    """Memory errors that came since the last look, and corrected ones by their rate."""
    problems = []
    for controller in facts:
        name = controller.name
        if rise := judging.counters.rise(f"edac:{name}:ue", controller.uncorrected, judging.at):
            summary = f"{rise} uncorrectable errors of the node's memory ({name})"
            problems.append(
                Problem(
                    rule="check.edac_uncorrected", summary=summary, place=Place(path=name), text=summary, happened=True
                )
            )
        key = f"edac:{name}:ce"
        judging.counters.rise(key, controller.corrected, judging.at)
        per_h = judging.counters.within(key, 3600.0, judging.at)
        least = judging.limits.edac_corrected_per_h
        if judging.counters.grows(key, 1200.0, judging.at, least=max(1, least // 10)):
            summary = f"corrected errors of the node's memory come ever faster: {per_h} in an hour ({name})"
            problems.append(
                Problem(rule="check.edac_trend", summary=summary, place=Place(path=name), text=summary, predicts=True)
            )
        elif per_h >= least:
            summary = f"{per_h} corrected errors of the node's memory in an hour ({name})"
            problems.append(
                Problem(
                    rule="check.edac_corrected", summary=summary, place=Place(path=name), text=summary, warning=True
                )
            )
    return problems


def cpu(facts: NodeFacts, judging: Judging) -> list[Problem]:
    """Processors and NUMA nodes against the profile."""
    problems = []
    for what, found, expected in (
        ("processors", facts.cpus, judging.profile.cpus),
        ("NUMA nodes", facts.numa_nodes, judging.profile.numa_nodes),
    ):
        if expected is not None and found < expected:
            summary = f"{found} of {expected} {what} are there"
            problems.append(Problem(rule="check.cpu_count", summary=summary, text=summary))
    return problems


def clock(facts: NodeFacts, judging: Judging) -> list[Problem]:
    """A clock that nothing disciplines, where something did; a clock that jumped."""
    problems = []
    # Seconds of the wall clock less seconds that never go back: constant, unless somebody sets the clock.
    offset = judging.now - judging.at
    before = float(judging.learned.get("clock:offset", offset))
    judging.learned["clock:offset"] = repr(offset)
    if abs(offset - before) > judging.limits.clock_step_s:
        summary = f"the clock was set {'forward' if offset > before else 'back'} by {abs(offset - before):.1f} s"
        problems.append(Problem(rule="check.clock_stepped", summary=summary, text=summary, warning=True, happened=True))
    if facts.clock_synced:
        judging.learned["clock:synced"] = "yes"
    elif facts.clock_synced is False and judging.learned.get("clock:synced"):
        summary = "nothing disciplines the clock any more (NTP)"
        problems.append(Problem(rule="check.clock_unsynced", summary=summary, text=summary, warning=True))
    return problems


def chrony(facts: tool_output.Tracking, judging: Judging) -> list[Problem]:
    """What chrony says."""
    if facts.leap.lower().startswith("not sync"):
        summary = "chrony is not synchronised"
        return [Problem(rule="check.clock_unsynced", summary=summary, text=summary, warning=True)]
    if abs(facts.offset_s) > judging.limits.clock_offset_s:
        summary = f"the clock is off by {facts.offset_s:.3f} s from {facts.source}"
        return [Problem(rule="check.clock_offset", summary=summary, text=summary, warning=True)]
    return []


def left_over(facts: tuple[ProcessFacts, ...], judging: Judging) -> list[Problem]:
    """Processes that an old job left."""
    del judging
    if not facts:
        return []
    words = ", ".join(f"{one.name} ({one.pid}{f', job {one.job}' if one.job else ''})" for one in facts[:5])
    summary = f"{len(facts)} process{'' if len(facts) == 1 else 'es'} left over: {words}"
    return [Problem(rule="check.left_over", summary=summary, text=words)]


def services(facts: dict[str, str], judging: Judging) -> list[Problem]:
    """Units of the profile that are not active. One that is being started or reloaded is given its time."""
    del judging
    return [
        Problem(rule="check.service_down", summary=f"the service {name} is {word}", place=Place(path=name), text=word)
        for name, word in facts.items()
        if word not in {"active", "activating", "reloading"}
    ]


def topology(facts: tuple[PciFacts, ...], judging: Judging) -> list[Problem]:
    """PCI devices against the profile; without one, lanes against what the device can."""
    problems = []
    by_address = {one.address: one for one in facts}
    for address, expected in judging.profile.pci.items():
        one = by_address.get(address)
        found = describe(one) if one is not None else "gone"
        wanted = dict(part.split("=", 1) for part in expected.split() if "=" in part)
        there = dict(part.split("=", 1) for part in found.split() if "=" in part)
        wrong = [
            f"{name} {there.get(name, 'gone')}, not {value}"
            for name, value in wanted.items()
            if there.get(name) != value
        ]
        if wrong:
            summary = f"PCI device {address}: {'; '.join(wrong)}"
            problems.append(Problem(rule="check.topology", summary=summary, place=Place(gpu_id=address), text=found))
    for one in facts:
        if one.address not in judging.profile.pci and one.width and one.width_max and one.width < one.width_max:
            summary = f"{one.kind} {one.address} runs on {one.width} of {one.width_max} PCIe lanes"
            problems.append(
                Problem(
                    rule="check.topology", summary=summary, place=Place(gpu_id=one.address), text=summary, warning=True
                )
            )
    return problems


def describe(device: PciFacts) -> str:
    """A device in the form of `profile.pci`."""
    parts = {"kind": device.kind, "numa": device.numa, "width": device.width, "speed": device.speed_max}
    return " ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in parts.items()
        if value is not None
    )


_WHILE_IDLE = (Mode.PERIODIC, Mode.PROLOG, Mode.DEEP)

NODE_CHECKS = (
    Check(
        name="disk-space",
        about="file systems that are full",
        source="mounts",
        modes=ANY_TIME,
        judge=space,
        rules=("check.disk_full", "check.disk_low"),
        emulated_ok=False,
    ),
    Check(
        name="disk-read-only",
        about="file systems that have become read-only",
        source="mounts",
        modes=ANY_TIME,
        judge=read_only,
        rules=("check.disk_read_only",),
        emulated_ok=False,
    ),
    Check(
        name="mount-stale",
        about="network file systems that do not answer",
        source="mounts",
        modes=ANY_TIME,
        judge=stale,
        rules=("check.mount_stale",),
        looks=2,
        emulated_ok=False,
    ),
    Check(
        name="mounts",
        about="mount points of the profile",
        source="mounts",
        modes=ANY_TIME,
        judge=required_mounts,
        rules=("check.mount_missing",),
        grace_s=120.0,
        emulated_ok=False,
    ),
    Check(
        name="disk-write",
        about="folders take a file and give it back",
        source="write",
        modes=ANY_TIME,
        judge=write,
        rules=("check.disk_write", "check.disk_full"),
        looks=2,
    ),
    Check(
        name="memory",
        about="memory: how much, how much is left",
        source="node",
        modes=_WHILE_IDLE,
        judge=memory,
        rules=("check.memory_missing", "check.memory_low"),
        emulated_ok=False,
    ),
    Check(
        name="edac",
        about="errors of the node's memory",
        source="edac",
        modes=_WHILE_IDLE,
        judge=edac,
        rules=("check.edac_uncorrected", "check.edac_corrected", "check.edac_trend"),
        emulated_ok=False,
    ),
    Check(
        name="cpu",
        about="processors and NUMA nodes of the profile",
        source="node",
        modes=_WHILE_IDLE,
        judge=cpu,
        rules=("check.cpu_count",),
    ),
    Check(
        name="clock",
        about="the clock: set by hand, not disciplined",
        source="node",
        modes=_WHILE_IDLE,
        judge=clock,
        rules=("check.clock_stepped", "check.clock_unsynced"),
    ),
    Check(
        name="chrony",
        about="the clock, as chrony sees it",
        source="chrony",
        modes=_WHILE_IDLE,
        judge=chrony,
        rules=("check.clock_unsynced", "check.clock_offset"),
        grace_s=120.0,
        looks=3,
        emulated_ok=False,
    ),
    Check(
        name="left-over",
        about="processes that old jobs left",
        source="processes",
        modes=(Mode.PROLOG, Mode.EPILOG, Mode.DEEP),
        judge=left_over,
        rules=("check.left_over",),
        emulated_ok=False,
    ),
    Check(
        name="services",
        about="services of the profile",
        source="services",
        modes=ANY_TIME,
        judge=services,
        rules=("check.service_down",),
        grace_s=300.0,
        looks=2,
        emulated_ok=False,
    ),
    Check(
        name="topology",
        about="PCI devices: NUMA node, lanes, speed, against the profile",
        source="pci",
        modes=_WHILE_IDLE,
        judge=topology,
        rules=("check.topology",),
        emulated_ok=False,
    ),
)
