"""Checks by tools: nvidia-smi, DCGM, dcgm-exporter, libfabric's fi_info and fi_pingpong, stress-ng.

Judging is pure; the sources run the tools through `Reach`, each within its limit. The long ones burn the machine and
belong to prologs and deep checks.
"""

from __future__ import annotations

import asyncio
import socket
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable

from holdfast.adapters.probes import dcgm_output, smi_output, tool_output
from holdfast.adapters.probes.check import Check, Judging, Mode, Problem, Reading, Source
from holdfast.adapters.probes.dcgm_output import Diag, ExporterGpu, HealthItem, Violation
from holdfast.adapters.probes.reach import Reach, limit
from holdfast.adapters.probes.smi_output import SmiFacts
from holdfast.adapters.probes.tool_output import FabricEndpoint, PingPong, Stress
from holdfast.model.evidence import Place, Remedy
from holdfast.os.programs import Ran

SMI_LIMIT_S = 30.0
HEALTH_LIMIT_S = 20.0
POLICY_LIMIT_S = 4.0
LISTEN_S = 1.5
"""DCGM tells of a violation when it happens: a look by hand listens for so long."""
DIAG_LIMIT_S = {1: 120.0, 2: 600.0, 3: 2700.0, 4: 7200.0}
"""DCGM's own figures: seconds, about 2 minutes, half an hour, one to two hours; with room."""
STRESS_S = 20
STRESS_LIMIT_S = 60.0
PINGPONG_LIMIT_S = 30.0
EXPORTER_LIMIT_S = 5.0
EXPORTER_MAX = 8 << 20
NO_ENGINE = "unable to establish a connection to the specified host"
_GPU_ERRORS = {
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": "uncorrectable memory errors",
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": "rows remapped for uncorrectable errors",
}


async def _smi(reach: Reach) -> Reading:
    ran = await reach.run(smi_output.ARGV, SMI_LIMIT_S)
    if isinstance(ran, Reading):
        return ran
    facts = smi_output.parse_smi(ran.out, ran.err, ran.code)
    if facts.unknown:
        return Reading(failed=f"nvidia-smi: {facts.unknown}", seconds=ran.seconds)
    return Reading(facts=facts, seconds=ran.seconds)


async def _health(reach: Reach) -> Reading:
    ran = await reach.run(("dcgmi", "health", "-g", "0", "-c"), HEALTH_LIMIT_S)
    if isinstance(ran, Reading):
        return ran
    overall, items = dcgm_output.parse_health(ran.out)
    if not overall:
        # No host engine, or its health watches are not set: nothing is watched.
        return Reading(absent=f"dcgmi health: {(ran.out or ran.err).strip()[:160]}")
    return Reading(facts=items, seconds=ran.seconds)


async def _policy(reach: Reach) -> Reading:
    if not reach.dcgm_policy:
        return Reading(absent="dcgm_policy is not set")
    path = reach.where("dcgmi")
    if not path:
        return Reading(absent="there is no dcgmi")
    follower = reach.follower((path, "policy", "-g", "0", "--reg"))
    try:
        lines = await follower.take()
    except OSError as error:
        return Reading(failed=f"dcgmi: {error.strerror}")
    if not lines and not await follower.until_heard(limit(POLICY_LIMIT_S)):
        return Reading(hung=True, failed=f"dcgmi policy said nothing within {limit(POLICY_LIMIT_S):g} s")
    if reach.mode is not Mode.PERIODIC:
        await asyncio.sleep(LISTEN_S)
    lines += follower.drain()
    if refused := next((line for line in lines if line.startswith("Error")), ""):
        absent = "DCGM's host engine does not run here" if NO_ENGINE in refused else ""
        return Reading(absent=absent, failed="" if absent else f"dcgmi policy: {refused.strip()[:160]}")
    reader = reach.policy_lines
    return Reading(facts=tuple(found for line in lines if (found := reader.feed(line)) is not None))


def _diag(level: int) -> Callable[[Reach], Awaitable[Reading]]:
    async def read(reach: Reach) -> Reading:
        ran = await reach.run(("dcgmi", "diag", "-r", str(level), "-j"), DIAG_LIMIT_S[level], "dcgmi diag")
        if isinstance(ran, Reading):
            return ran
        if NO_ENGINE in f"{ran.out}{ran.err}":
            return Reading(absent="DCGM's host engine does not run here", seconds=ran.seconds)
        diag = dcgm_output.parse_diag(ran.out, ran.err)
        if diag.error and not diag.failures:
            return Reading(failed=f"dcgmi diag: {diag.error}", seconds=ran.seconds)
        return Reading(facts=diag, seconds=ran.seconds)

    return read


async def _exporter(reach: Reach) -> Reading:
    if not reach.exporter:
        return Reading(absent="no dcgm_exporter is named")
    try:
        page = await asyncio.to_thread(_fetch, reach.exporter)
    except (OSError, urllib.error.URLError, ValueError) as error:
        return Reading(failed=f"{reach.exporter}: {error}")
    found = dcgm_output.parse_exporter(page)
    return Reading(facts=tuple(found.values())) if found else Reading(failed=f"{reach.exporter} shows no GPU")


def _fetch(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise ValueError("its address must begin with http:// or https://")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=EXPORTER_LIMIT_S) as answer:
        page: bytes = answer.read(EXPORTER_MAX)
    return page.decode(errors="replace")


async def _fi_info(reach: Reach) -> Reading:
    ran = await reach.run(("fi_info", "-p", reach.fabric_provider), 20.0)
    if isinstance(ran, Reading):
        return ran
    return Reading(facts=tool_output.parse_fi_info(ran.out), seconds=ran.seconds)


async def _pingpong(reach: Reach) -> Reading:
    """Server and client on this machine, through the provider."""
    path = reach.where("fi_pingpong")
    if not path:
        return Reading(absent="there is no fi_pingpong")
    seen = await _fi_info(reach)
    if not seen.facts:
        return Reading(absent=f"libfabric has no provider {reach.fabric_provider} here")
    port = str(_free_port())
    argv = (path, "-p", reach.fabric_provider, "-e", "rdm", "-I", "50")
    server = asyncio.create_task(reach.run_at((*argv, "-B", port), PINGPONG_LIMIT_S))
    client, found = Ran(), PingPong(error="the server never listened")
    try:
        # The server says nothing when it listens: the client tries until it does.
        for _ in range(20):
            await asyncio.sleep(0.25)
            client = await reach.run_at((*argv, "-P", port, "127.0.0.1"), PINGPONG_LIMIT_S)
            found = tool_output.parse_pingpong(client.out, client.err)
            if found.rates or client.hung or server.done():
                break
    finally:
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)
    if client.hung:
        return Reading(
            hung=True, failed=f"fi_pingpong did not end within {PINGPONG_LIMIT_S:g} s", seconds=client.seconds
        )
    return Reading(facts=found, seconds=client.seconds)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


async def _stress(reach: Reach) -> Reading:
    argv = (
        "stress-ng",
        "--cpu",
        "0",
        "--cpu-method",
        "all",
        "--verify",
        "--timeout",
        f"{STRESS_S}s",
        "--metrics-brief",
    )
    ran = await reach.run(argv, STRESS_LIMIT_S)
    if isinstance(ran, Reading):
        return ran
    found = tool_output.parse_stress(f"{ran.out}\n{ran.err}")
    if not found.finished and not found.failures:
        return Reading(failed=f"stress-ng ended with code {ran.code}: {(ran.err or ran.out).strip()[-200:]}")
    return Reading(facts=found, seconds=ran.seconds)


TOOL_SOURCES = (
    Source(name="nvidia-smi", about="nvidia-smi --query-gpu", needs="nvidia-smi", limit_s=SMI_LIMIT_S + 5, read=_smi,
           every_s=60.0),
    Source(name="dcgm-health", about="dcgmi health -c", needs="dcgmi, a host engine with health watches set",
           limit_s=HEALTH_LIMIT_S + 5, read=_health, every_s=60.0),
    Source(name="dcgm-policy", about="dcgmi policy --reg, followed", needs="dcgmi, and dcgm_policy = true",
           limit_s=POLICY_LIMIT_S + LISTEN_S + 1.5, read=_policy),
    Source(name="dcgm-exporter", about="dcgm-exporter's metrics page", needs='dcgm_exporter = "http://..."',
           limit_s=EXPORTER_LIMIT_S + 1, read=_exporter),
    *(Source(name=f"dcgm-diag-{level}", about=f"dcgmi diag -r {level} -j", needs="dcgmi and a host engine",
             limit_s=limit_s + 5, read=_diag(level)) for level, limit_s in DIAG_LIMIT_S.items()),
    Source(name="fi-info", about="fi_info", needs="libfabric's fi_info", limit_s=25.0, read=_fi_info),
    Source(name="fi-pingpong", about="fi_pingpong over loopback", needs="libfabric's fi_pingpong and the provider",
           limit_s=2 * PINGPONG_LIMIT_S, read=_pingpong),
    Source(name="stress-ng", about=f"stress-ng --cpu 0 --verify for {STRESS_S} s", needs="stress-ng",
           limit_s=STRESS_LIMIT_S + 5, read=_stress),
)  # fmt: skip


def smi(facts: SmiFacts, judging: Judging) -> list[Problem]:
    """GPUs that nvidia-smi cannot reach; library and driver of different versions; too few GPUs."""
    if facts.mismatch:
        summary = "nvidia-smi: driver library and kernel module are of different versions"
        return [Problem(rule="nvidia.driver.mismatch", summary=summary, text=summary)]
    problems = [
        Problem(
            rule="check.gpu_lost",
            summary=f"nvidia-smi cannot reach GPU {pci}: {why}",
            place=Place(gpu_id=pci),
            text=why,
        )
        for pci, why in facts.lost
    ]
    expected = judging.profile.gpus
    if not problems and expected is not None and len(facts.gpus) < expected:
        rule = "check.gpu_count" if facts.gpus else "check.gpu_driver"
        summary = f"nvidia-smi shows {len(facts.gpus)} of {expected} GPUs"
        problems.append(Problem(rule=rule, summary=summary, text=summary))
    for gpu in facts.gpus:
        if gpu.ecc_uncorrected:
            summary = (
                f"{gpu.ecc_uncorrected} uncorrectable memory errors on GPU {gpu.index} since the driver was loaded"
            )
            problems.append(
                Problem(
                    rule="check.gpu_ecc_uncorrected",
                    summary=summary,
                    place=Place(gpu=gpu.index, gpu_id=gpu.uuid),
                    text=summary,
                    warning=True,
                )
            )
    return problems


def health(facts: tuple[HealthItem, ...], judging: Judging) -> list[Problem]:
    """What DCGM's health watches found."""
    del judging
    return [
        Problem(
            rule="check.dcgm_health" if item.failure else "check.dcgm_warning",
            summary=f"DCGM: {item.system}: {item.text or 'no detail'}"
            + (f" (GPU {item.gpu})" if item.gpu is not None else ""),
            place=Place(gpu=item.gpu, link=item.system),
            text=item.text,
            warning=not item.failure,
        )
        for item in facts
    ]


def policy(facts: tuple[Violation, ...], judging: Judging) -> list[Problem]:
    """Violations of the site's DCGM policy. An Xid is the kernel log's matter where that is read."""
    return [
        Problem(
            rule=f"nvidia.xid.{one.value}" if one.kind == "xid" else "check.dcgm_policy",
            summary="" if one.kind == "xid" else f"DCGM policy violated: {one.text}",
            text=one.text,
            happened=True,
            captures={"what": one.kind},
        )
        for one in facts
        if not (one.kind == "xid" and judging.kernel_log)
    ]


def diag(facts: Diag, judging: Judging) -> list[Problem]:
    """Tests of DCGM's diagnostic that failed. What DCGM calls a matter of configuration is a warning."""
    del judging
    problems = []
    for failure in facts.failures:
        setting = failure.severity == dcgm_output.CONFIG
        warning = failure.status == "warn" or setting
        where = f" on GPU {failure.gpu}" if failure.gpu is not None else ""
        problems.append(
            Problem(
                rule="check.dcgm_config" if setting else "check.dcgm_diag",
                summary=f"DCGM's test {failure.test} failed{where}: {failure.text or failure.status}",
                place=Place(gpu=failure.gpu, link=failure.test),
                text=failure.text,
                warning=warning,
                remedy=Remedy.RESET_GPU if failure.severity == dcgm_output.RESET else None,
            )
        )
    return problems


def exporter(facts: tuple[ExporterGpu, ...], judging: Judging) -> list[Problem]:
    """Counters of dcgm-exporter that rose. Its Xid is a gauge that holds the last one: a change of it is news."""
    problems = []
    for gpu in facts:
        place = Place(gpu=gpu.gpu, gpu_id=gpu.uuid)
        for name, words in _GPU_ERRORS.items():
            if name in gpu.values:
                rise = judging.counters.rise(f"exporter:{gpu.uuid}:{name}", int(gpu.values[name]), judging.at)
                if rise:
                    summary = f"{rise} {words} on GPU {gpu.gpu} (dcgm-exporter)"
                    problems.append(
                        Problem(
                            rule="check.gpu_ecc_uncorrected", summary=summary, place=place, text=summary, happened=True
                        )
                    )
        xid = int(gpu.values.get("DCGM_FI_DEV_XID_ERRORS", 0))
        key = f"exporter:{gpu.uuid}:xid"
        before = judging.learned.get(key)
        judging.learned[key] = str(xid)
        if xid and before is not None and before != str(xid) and not judging.kernel_log:
            text = f"DCGM_FI_DEV_XID_ERRORS is {xid}, was {before}"
            problems.append(Problem(rule=f"nvidia.xid.{xid}", summary="", place=place, text=text, happened=True))
    return problems


def fi_info(facts: tuple[FabricEndpoint, ...], judging: Judging) -> list[Problem]:
    """Domains that libfabric sees, against the number of EFA devices that there should be."""
    expected = judging.profile.efa
    domains = {one.domain.removesuffix("-rdm").removesuffix("-dgrm") for one in facts}
    if expected is None or len(domains) >= expected:
        return []
    summary = f"libfabric sees {len(domains)} of {expected} EFA devices"
    return [Problem(rule="check.fabric_port_down", summary=summary, text=", ".join(sorted(domains)) or "none")]


def pingpong(facts: PingPong, judging: Judging) -> list[Problem]:
    """The loopback must work, and be as fast as the limits ask."""
    if not facts.rates:
        summary = f"the fabric's loopback does not work: {facts.error}"
        return [Problem(rule="check.fabric_loopback", summary=summary, text=facts.error)]
    size = max(facts.rates)
    least = judging.limits.fabric_mb_per_s
    if least is not None and facts.rates[size] < least:
        summary = f"the fabric's loopback moves {facts.rates[size]:.0f} MB/s at {size} bytes, not {least:g}"
        return [Problem(rule="check.fabric_loopback", summary=summary, text=summary)]
    return []


def stress(facts: Stress, judging: Judging) -> list[Problem]:
    """Processors that compute wrongly."""
    del judging
    if not facts.failures:
        return []
    summary = f"processors failed stress-ng's verification: {facts.failures[0]}"
    return [Problem(rule="check.cpu_stress", summary=summary, text="; ".join(facts.failures[:3]))]


_ON_DEMAND: tuple[Mode, ...] = ()
_DIAG_MODES = {1: _ON_DEMAND, 2: (Mode.PROLOG,), 3: _ON_DEMAND, 4: (Mode.DEEP,)}

TOOL_CHECKS = (
    Check(name="nvidia-smi", about="nvidia-smi answers, and shows all GPUs", source="nvidia-smi",
          modes=(Mode.PROLOG, Mode.EPILOG, Mode.DEEP), judge=smi,
          rules=("check.gpu_lost", "check.gpu_count", "check.gpu_driver", "check.gpu_ecc_uncorrected",
                 "nvidia.driver.mismatch"), grace_s=300.0),
    Check(name="dcgm-health", about="DCGM's background health watches", source="dcgm-health",
          modes=(Mode.PERIODIC, Mode.PROLOG, Mode.EPILOG, Mode.DEEP), judge=health,
          rules=("check.dcgm_health", "check.dcgm_warning"), grace_s=120.0, looks=2),
    Check(name="dcgm-policy", about="violations of the site's DCGM policy", source="dcgm-policy",
          modes=(Mode.PERIODIC,), judge=policy, rules=("check.dcgm_policy", "nvidia.xid.*")),
    Check(name="dcgm-exporter", about="counters of dcgm-exporter", source="dcgm-exporter", modes=(Mode.PERIODIC,),
          judge=exporter, rules=("check.gpu_ecc_uncorrected", "nvidia.xid.*")),
    *(Check(name=f"dcgm-diag-{level}", about=f"DCGM's diagnostic, level {level}", source=f"dcgm-diag-{level}",
            modes=modes, judge=diag, rules=("check.dcgm_diag", "check.dcgm_config"))
      for level, modes in _DIAG_MODES.items()),
    Check(name="fi-info", about="libfabric sees the EFA devices", source="fi-info", modes=(Mode.PROLOG, Mode.DEEP),
          judge=fi_info, rules=("check.fabric_port_down",), grace_s=120.0),
    Check(name="fi-pingpong", about="a loopback through the fabric works, and how fast", source="fi-pingpong",
          modes=(Mode.DEEP,), judge=pingpong, rules=("check.fabric_loopback",), emulated_ok=False),
    Check(name="cpu-stress", about="processors compute rightly under full load", source="stress-ng", modes=(Mode.DEEP,),
          judge=stress, rules=("check.cpu_stress",), emulated_ok=False),
)  # fmt: skip
