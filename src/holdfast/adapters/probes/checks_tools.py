"""Checks by tools: nvidia-smi, DCGM, dcgm-exporter, libfabric's fi_info and fi_pingpong, stress-ng.

Judging is pure; the sources run the tools through `Reach`, each within its limit. The long ones burn the machine and
belong to prologs and deep checks.
"""

from __future__ import annotations

import asyncio
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

from holdfast.adapters.probes import dcgm_output, smi_output, tool_output
from holdfast.adapters.probes.check import Judging, Mode, Problem, Reading, check, problem, source
from holdfast.adapters.probes.dcgm_output import Diag, ExporterGpu, HealthItem, Violation
from holdfast.adapters.probes.reach import Reach, limit, tool, with_itself
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


@tool("nvidia-smi", "nvidia-smi --query-gpu", "nvidia-smi", lambda _: smi_output.ARGV, SMI_LIMIT_S, 60.0)
def smi_read(ran: Ran) -> Reading:
    """What nvidia-smi shows."""
    facts = smi_output.parse_smi(ran.out, ran.err, ran.code)
    return Reading(failed=f"nvidia-smi: {facts.unknown}") if facts.unknown else Reading(facts=facts)


@tool(
    "dcgm-health",
    "dcgmi health -c",
    "dcgmi, a host engine with health watches set",
    lambda _: ("dcgmi", "health", "-g", "0", "-c"),
    HEALTH_LIMIT_S,
    60.0,
)
def health_read(ran: Ran) -> Reading:
    """What DCGM's health watches say."""
    overall, items = dcgm_output.parse_health(ran.out)
    # Without a host engine, or where its health watches are not set, nothing is watched.
    return Reading(facts=items) if overall else Reading(absent=f"dcgmi health: {(ran.out or ran.err).strip()[:160]}")


@source("dcgm-policy", "dcgmi policy --reg, followed", "dcgmi, and dcgm_policy = true", POLICY_LIMIT_S + LISTEN_S + 1.5)
async def _policy(reach: Reach) -> Reading:
    if not reach.config.dcgm_policy:
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


@source("dcgm-exporter", "dcgm-exporter's metrics page", 'dcgm_exporter = "http://..."', EXPORTER_LIMIT_S + 1)
async def _exporter(reach: Reach) -> Reading:
    if not reach.config.dcgm_exporter:
        return Reading(absent="no dcgm_exporter is named")
    try:
        page = await asyncio.to_thread(_fetch, reach.config.dcgm_exporter)
    except (OSError, urllib.error.URLError, ValueError) as error:
        return Reading(failed=f"{reach.config.dcgm_exporter}: {error}")
    found = dcgm_output.parse_exporter(page)
    return (
        Reading(facts=tuple(found.values())) if found else Reading(failed=f"{reach.config.dcgm_exporter} shows no GPU")
    )


def _fetch(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise ValueError("its address must begin with http:// or https://")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=EXPORTER_LIMIT_S) as answer:
        page: bytes = answer.read(EXPORTER_MAX)
    return page.decode(errors="replace")


def diag_read(ran: Ran) -> Reading:
    """What a diagnostic of DCGM found."""
    if NO_ENGINE in f"{ran.out}{ran.err}":
        return Reading(absent="DCGM's host engine does not run here")
    found = dcgm_output.parse_diag(ran.out, ran.err)
    return Reading(failed=f"dcgmi diag: {found.error}") if found.error and not found.failures else Reading(facts=found)


DIAGS = tuple(
    tool(
        f"dcgm-diag-{level}",
        f"dcgmi diag -r {level} -j",
        "dcgmi and a host engine",
        lambda _, level=level: ("dcgmi", "diag", "-r", str(level), "-j"),  # type: ignore[misc]
        limit_s,
        called="dcgmi diag",
    )(diag_read)
    for level, limit_s in DIAG_LIMIT_S.items()
)


@tool("fi-info", "fi_info", "libfabric's fi_info", lambda reach: ("fi_info", "-p", reach.config.fabric_provider), 20.0)
def fi_info_read(ran: Ran) -> Reading:
    """What libfabric has of the fabric's provider."""
    return Reading(facts=tool_output.parse_fi_info(ran.out))


def pingpong_argv(path: str, provider: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Both ends of fi_pingpong on this machine: the one that serves, the one that asks."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    argv = (path, "-p", provider, "-e", "rdm", "-I", "50")
    return (*argv, "-B", port), (*argv, "-P", port, "127.0.0.1")


@source("fi-pingpong", "fi_pingpong over loopback", "libfabric's fi_pingpong and the provider", 2 * PINGPONG_LIMIT_S)
async def _pingpong(reach: Reach) -> Reading:
    """Server and client on this machine, through the provider."""
    path = reach.where("fi_pingpong")
    if not path:
        return Reading(absent="there is no fi_pingpong")
    seen = await fi_info_read.read(reach)
    if not seen.facts:
        return Reading(absent=f"libfabric has no provider {reach.config.fabric_provider} here")
    serve, ask = pingpong_argv(path, reach.config.fabric_provider)
    found, client = await with_itself(serve, ask, tool_output.parse_pingpong, reach.env, PINGPONG_LIMIT_S)
    if client.hung:
        return Reading(hung=True, failed=f"fi_pingpong did not end within {PINGPONG_LIMIT_S:g} s")
    return Reading(facts=found)


def stress_argv() -> tuple[str, ...]:
    """All processors at full load with verified results, for STRESS_S."""
    load = ("--cpu", "0", "--cpu-method", "all", "--verify", "--metrics-brief")
    return ("stress-ng", *load, "--timeout", f"{STRESS_S}s")


@tool("stress-ng", f"stress-ng --cpu 0 --verify for {STRESS_S} s", "stress-ng", lambda _: stress_argv(), STRESS_LIMIT_S)
def stress_read(ran: Ran) -> Reading:
    """How stress-ng ended."""
    found = tool_output.parse_stress(f"{ran.out}\n{ran.err}")
    if not found.finished and not found.failures:
        return Reading(failed=f"stress-ng ended with code {ran.code}: {(ran.err or ran.out).strip()[-200:]}")
    return Reading(facts=found)


@check(
    "nvidia-smi",
    "nvidia-smi answers, and shows all GPUs",
    "nvidia-smi",
    "check.gpu_lost",
    "check.gpu_count",
    "check.gpu_driver",
    "check.gpu_ecc_uncorrected",
    "nvidia.driver.mismatch",
    modes=(Mode.PROLOG, Mode.EPILOG, Mode.DEEP),
    grace_s=300.0,
)
def smi(facts: SmiFacts, judging: Judging) -> Iterator[Problem]:
    """GPUs that nvidia-smi cannot reach; library and driver of different versions; too few GPUs."""
    if facts.mismatch:
        summary = "nvidia-smi: driver library and kernel module are of different versions"
        yield problem("nvidia.driver.mismatch", summary)
        return
    for pci, why in facts.lost:
        yield problem("check.gpu_lost", f"nvidia-smi cannot reach GPU {pci}: {why}", Place(gpu_id=pci), text=why)
    expected = judging.profile.gpus
    if not facts.lost and expected is not None and len(facts.gpus) < expected:
        rule = "check.gpu_count" if facts.gpus else "check.gpu_driver"
        yield problem(rule, f"nvidia-smi shows {len(facts.gpus)} of {expected} GPUs")
    for gpu in facts.gpus:
        if number := gpu.ecc_uncorrected:
            summary = f"{number} uncorrectable memory errors on GPU {gpu.index} since the driver was loaded"
            yield problem("check.gpu_ecc_uncorrected", summary, Place(gpu=gpu.index, gpu_id=gpu.uuid), warning=True)


@check(
    "dcgm-health",
    "DCGM's background health watches",
    "dcgm-health",
    "check.dcgm_health",
    "check.dcgm_warning",
    grace_s=120.0,
    looks=2,
)
def health(facts: tuple[HealthItem, ...], _judging: Judging) -> Iterator[Problem]:
    """What DCGM's health watches found."""
    for item in facts:
        rule = "check.dcgm_health" if item.failure else "check.dcgm_warning"
        where = f" (GPU {item.gpu})" if item.gpu is not None else ""
        summary = f"DCGM: {item.system}: {item.text or 'no detail'}{where}"
        yield problem(rule, summary, Place(gpu=item.gpu, link=item.system), text=item.text, warning=not item.failure)


@check(
    "dcgm-policy",
    "violations of the site's DCGM policy",
    "dcgm-policy",
    "check.dcgm_policy",
    "nvidia.xid.*",
    modes=(Mode.PERIODIC,),
)
def policy(facts: tuple[Violation, ...], judging: Judging) -> Iterator[Problem]:
    """Violations of the site's DCGM policy. An Xid is the kernel log's matter where that is read."""
    for one in facts:
        is_xid = one.kind == "xid"
        if not (is_xid and judging.kernel_log):
            rule = f"nvidia.xid.{one.value}" if is_xid else "check.dcgm_policy"
            summary = "" if is_xid else f"DCGM policy violated: {one.text}"
            yield problem(rule, summary, text=one.text, happened=True, captures={"what": one.kind})


@check(
    "dcgm-exporter",
    "counters of dcgm-exporter",
    "dcgm-exporter",
    "check.gpu_ecc_uncorrected",
    "nvidia.xid.*",
    modes=(Mode.PERIODIC,),
)
def exporter(facts: tuple[ExporterGpu, ...], judging: Judging) -> Iterator[Problem]:
    """Counters of dcgm-exporter that rose. Its Xid is a gauge that holds the last one: a change of it is news."""
    for gpu in facts:
        place = Place(gpu=gpu.gpu, gpu_id=gpu.uuid)
        for name, words in _GPU_ERRORS.items():
            value = gpu.values.get(name)
            if value is not None and (rise := judging.rise(f"exporter:{gpu.uuid}:{name}", int(value))):
                summary = f"{rise} {words} on GPU {gpu.gpu} (dcgm-exporter)"
                yield problem("check.gpu_ecc_uncorrected", summary, place, happened=True)
        xid = int(gpu.values.get("DCGM_FI_DEV_XID_ERRORS", 0))
        key = f"exporter:{gpu.uuid}:xid"
        before = judging.learned.get(key)
        judging.learned[key] = str(xid)
        if xid and before is not None and before != str(xid) and not judging.kernel_log:
            text = f"DCGM_FI_DEV_XID_ERRORS is {xid}, was {before}"
            yield problem(f"nvidia.xid.{xid}", "", place, text=text, happened=True)


def diag(facts: Diag, judging: Judging) -> list[Problem]:
    """Tests of DCGM's diagnostic that failed. What DCGM calls a matter of configuration is a warning."""
    del judging
    problems = []
    for one in facts.failures:
        setting = one.severity == dcgm_output.CONFIG
        where = f" on GPU {one.gpu}" if one.gpu is not None else ""
        problems.append(
            problem(
                "check.dcgm_config" if setting else "check.dcgm_diag",
                f"DCGM's test {one.test} failed{where}: {one.text or one.status}",
                Place(gpu=one.gpu, link=one.test),
                text=one.text,
                warning=one.status == "warn" or setting,
                remedy=Remedy.RESET_GPU if one.severity == dcgm_output.RESET else None,
            )
        )
    return problems


DIAG_CHECKS = tuple(
    check(
        source.name,
        f"DCGM's diagnostic, level {level}",
        source.name,
        "check.dcgm_diag",
        "check.dcgm_config",
        modes={2: (Mode.PROLOG,), 4: (Mode.DEEP,)}.get(level, ()),
    )(diag)
    for level, source in enumerate(DIAGS, 1)
)


@check(
    "fi-info",
    "libfabric sees the EFA devices",
    "fi-info",
    "check.fabric_port_down",
    modes=(Mode.PROLOG, Mode.DEEP),
    grace_s=120.0,
)
def fi_info(facts: tuple[FabricEndpoint, ...], judging: Judging) -> Iterator[Problem]:
    """Domains that libfabric sees, against the number of EFA devices that there should be."""
    expected = judging.profile.efa
    domains = tool_output.domains(facts)
    if expected is not None and len(domains) < expected:
        summary = f"libfabric sees {len(domains)} of {expected} EFA devices"
        yield problem("check.fabric_port_down", summary, text=", ".join(sorted(domains)) or "none")


@check(
    "fi-pingpong",
    "a loopback through the fabric works, and how fast",
    "fi-pingpong",
    "check.fabric_loopback",
    modes=(Mode.DEEP,),
    emulated_ok=False,
)
def pingpong(facts: PingPong, judging: Judging) -> Iterator[Problem]:
    """The loopback must work, and be as fast as the limits ask."""
    least = judging.limits.fabric_mb_per_s
    if not facts.rates:
        summary = f"the fabric's loopback does not work: {facts.error}"
        yield problem("check.fabric_loopback", summary, text=facts.error)
    elif least is not None and facts.rates[size := max(facts.rates)] < least:
        summary = f"the fabric's loopback moves {facts.rates[size]:.0f} MB/s at {size} bytes, not {least:g}"
        yield problem("check.fabric_loopback", summary)


@check(
    "cpu-stress",
    "processors compute rightly under full load",
    "stress-ng",
    "check.cpu_stress",
    modes=(Mode.DEEP,),
    emulated_ok=False,
)
def stress(facts: Stress, _judging: Judging) -> Iterator[Problem]:
    """Processors that compute wrongly."""
    if facts.failures:
        summary = f"processors failed stress-ng's verification: {facts.failures[0]}"
        yield problem("check.cpu_stress", summary, text="; ".join(facts.failures[:3]))
