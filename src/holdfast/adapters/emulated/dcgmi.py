"""The emulated `dcgmi`: discovery, health, diag, policy and `test --inject` over the shared state.

Started by the script that `devices.prepare` writes. Standard library only. `test --inject` takes the field numbers that
NVIDIA's guides use (`dcgmi test --inject --gpuid 0 -f 319 -v 4`). `policy --reg` waits for violations, as the real one.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.adapters.emulated import layout
from holdfast.adapters.emulated.layout import Devices, Gpu

VERSION = "4.2.3"
LOOK_S = 0.1
_LEVELS = {
    1: ("software",),
    2: ("software", "memory", "pcie"),
    3: ("software", "memory", "pcie", "diagnostic", "targeted_stress", "targeted_power", "nvbandwidth"),
}
_LEVELS[4] = (*_LEVELS[3], "memtest", "pulse_test")


def _set(name: str) -> Callable[[Gpu, int], None]:
    return lambda gpu, value: setattr(gpu, name, value)


def _ecc(kind: int, *scopes: int) -> Callable[[Gpu, int], None]:
    def change(gpu: Gpu, value: int) -> None:
        for scope in scopes:
            gpu.ecc[kind][scope] = value

    return change


def _links(name: str) -> Callable[[Gpu, int], None]:
    return lambda gpu, value: setattr(gpu.links[0], name, value)


INJECTABLE: dict[int, tuple[str, Callable[[Gpu, int], None]]] = {
    140: ("DCGM_FI_DEV_MEMORY_TEMP", _set("memory_c")),
    150: ("DCGM_FI_DEV_GPU_TEMP", _set("temperature")),
    155: ("DCGM_FI_DEV_POWER_USAGE", lambda gpu, value: setattr(gpu, "power_mw", value * 1000)),
    202: ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", _set("pcie_replay")),
    230: ("DCGM_FI_DEV_XID_ERRORS", layout.report_xid),
    310: ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", _ecc(0, 0)),
    311: ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", _ecc(1, 0)),
    312: ("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", _ecc(0, 1)),
    313: ("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", _ecc(1, 1)),
    318: ("DCGM_FI_DEV_ECC_SBE_VOL_DEV", _ecc(0, 0, 1)),
    319: ("DCGM_FI_DEV_ECC_DBE_VOL_DEV", _ecc(1, 0, 1)),
    395: ("DCGM_FI_DEV_ROW_REMAP_FAILURE", _set("remap_failed")),
    396: ("DCGM_FI_DEV_ROW_REMAP_PENDING", _set("remap_pending")),
    409: ("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", _links("crc_flit")),
    419: ("DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", _links("crc_data")),
    429: ("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", _links("replay")),
    439: ("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", _links("recovery")),
}
"""Field number (dcgm_fields.h of DCGM 3 and 4) -> its name and what it changes."""


def main(argv: list[str], folder: Path) -> int:
    """Run the command; returns its exit code."""
    if argv[:1] in (["--version"], ["-v"]):
        _say(f"dcgmi  version: {VERSION} (emulated)")
        return 0
    parser = argparse.ArgumentParser(prog="dcgmi", description="Emulated GPUs: no hardware is behind this.")
    sub = parser.add_subparsers(dest="what", required=True)
    sub.add_parser("discovery").add_argument("-l", "--list", action="store_true")
    health = sub.add_parser("health")
    health.add_argument("-s", "--set")
    health.add_argument("-c", "--check", action="store_true")
    diag = sub.add_parser("diag")
    diag.add_argument("-r", "--run", default="1")
    diag.add_argument("-i", "--index", default="")
    policy = sub.add_parser("policy")
    policy.add_argument("--set")
    policy.add_argument("--get", action="store_true")
    policy.add_argument("--reg", action="store_true")
    test = sub.add_parser("test")
    test.add_argument("--inject", action="store_true", required=True)
    test.add_argument("--gpuid", type=int, default=0)
    test.add_argument("-f", "--field", type=int, required=True)
    test.add_argument("-v", "--value", type=float, required=True)
    for one in (health, diag, policy, test):
        one.add_argument("-g", "--group", default="0")
        one.add_argument("-j", "--json", action="store_true")
    args, _ = parser.parse_known_args(argv)
    with Devices(folder / "state") as devices:
        while devices.state.mode == layout.MODE_HANG:
            time.sleep(LOOK_S)
        if devices.state.mode == layout.MODE_NO_DRIVER:
            _say("Error: unable to establish a connection to the specified host: localhost (emulated)")
            return 226
        if devices.state.mode == layout.MODE_REFUSED:
            _say("Error: Insufficient permissions to perform the requested operation (emulated)")
            return 255
        deed = {"discovery": _discovery, "health": _health, "diag": _diag, "policy": _policy, "test": _inject}[
            args.what
        ]
        return deed(devices, args)


def _discovery(devices: Devices, args: argparse.Namespace) -> int:
    del args
    _say(f"{devices.state.count} GPUs found (emulated).")
    for index, gpu in enumerate(devices.gpus):
        _say(f"| {index} | Name: {gpu.name.decode()} | {gpu.bus_id.decode()} | {gpu.uuid.decode()} |")
    return 0


def _inject(devices: Devices, args: argparse.Namespace) -> int:
    if args.field not in INJECTABLE:
        _say(f"Error: field {args.field} cannot be injected here; known: {', '.join(map(str, INJECTABLE))}")
        return 1
    try:
        gpu = devices.gpu(args.gpuid)
    except ValueError as error:
        _say(f"Error: {error}")
        return 1
    INJECTABLE[args.field][1](gpu, int(args.value))
    _say("Successfully injected field info.")
    return 0


def troubles(gpu: Gpu) -> list[tuple[str, str, str]]:
    """`(system, Warning|Failure, text)` of each trouble that health watches would report."""
    out = []
    if gpu.lost:
        out.append(("NVML", "Failure", "GPU is lost"))
    if gpu.ecc[1][0]:
        out.append(("Memory", "Failure", f"Detected {gpu.ecc[1][0]} uncorrectable volatile ECC errors"))
    if gpu.remap_failed:
        out.append(("Memory", "Failure", "Row remapping failed: contact support for replacement"))
    elif gpu.remap_pending:
        out.append(("Memory", "Warning", "A row remapping is pending: reset the GPU"))
    if gpu.pcie_replay > 8:
        out.append(("PCIe", "Warning", f"Detected more than 8 PCIe replays per minute: {gpu.pcie_replay}"))
    if gpu.throttle & 0x40:
        out.append(("Thermal", "Warning", f"Clocks are reduced for heat at {gpu.temperature} C"))
    down = [link for link in range(gpu.link_count) if not gpu.links[link].active]
    if down:
        out.append(("NVLINK", "Failure", f"NVLink {down[0]} is down"))
    return out


def _health(devices: Devices, args: argparse.Namespace) -> int:
    if not args.check:
        _say("Health monitor systems set successfully.")
        return 0
    found = {index: troubles(gpu) for index, gpu in enumerate(devices.gpus)}
    words = [level for items in found.values() for _, level, _ in items]
    overall = "Failure" if "Failure" in words else "Warning" if words else "Healthy"
    width = 46
    rows = ["Health Monitor Report (emulated)", "+" + "-" * 27 + "+" + "-" * (width + 2) + "+"]
    rows.append(f"| {'Overall Health':<25} | {overall:<{width}} |")
    for index, items in found.items():
        if items:
            rows.append(f"| {'GPU':<25} | {'':<{width}} |")
            worst = "Failure" if any(level == "Failure" for _, level, _ in items) else "Warning"
            rows.append(f"| {f'-> {index}':<25} | {worst:<{width}} |")
            rows.append(f"| {'   -> Errors':<25} | {'':<{width}} |")
            for system, level, text in items:
                rows.append(f"| {f'      -> {system} system':<25} | {level:<{width}} |")
                rows += [f"| {'':<25} | {text[at : at + width]:<{width}} |" for at in range(0, len(text), width)]
    _say("\n".join([*rows, rows[1]]))
    return 0


def _diag(devices: Devices, args: argparse.Namespace) -> int:
    level = {"quick": 1, "short": 1, "medium": 2, "long": 3, "xlong": 4}.get(args.run) or int(args.run)
    tests = [_test(name, devices) for name in _LEVELS[level]]
    failed = any(result["status"] == "Fail" for test in tests for result in test["results"])
    if args.json:
        categories = [{"category": "Deployment", "tests": tests[:1]}]
        if tests[1:]:
            categories.append({"category": "Hardware", "tests": tests[1:]})
        form = {
            "DCGM Diagnostic": {"test_categories": categories},
            "metadata": {"DCGM Version": VERSION, "Driver Version Detected": layout.DRIVER, "emulated": True},
        }
        _say(json.dumps(form, indent=1))
    else:
        _say("Successfully ran diagnostic for group. (emulated)")
        for test in tests:
            _say(f"| {test['name']:<25} | {test['test_summary']['status']:<46} |")
    return 226 if failed else 0


def _test(name: str, devices: Devices) -> dict[str, Any]:
    results: list[dict[str, Any]] = []
    for index, gpu in enumerate(devices.gpus):
        seen = [text for system, level, text in troubles(gpu) if level == "Failure" and _belongs(name, system)]
        result: dict[str, Any] = {
            "entity_group": "GPU",
            "entity_group_id": 1,
            "entity_id": index,
            "status": "Fail" if seen else "Pass",
        }
        if seen:
            result["warnings"] = [
                {"error_category": 1, "error_id": 97, "error_severity": 2, "warning": f"GPU {index}: {text}"}
                for text in seen
            ]
        results.append(result)
    status = "Fail" if any(result["status"] == "Fail" for result in results) else "Pass"
    return {"name": name, "results": results, "test_summary": {"status": status}}


def _belongs(test: str, system: str) -> bool:
    return {"software": system == "NVML", "memory": system == "Memory", "pcie": system in {"PCIe", "NVLINK"}}.get(
        test, False
    )


def _policy(devices: Devices, args: argparse.Namespace) -> int:
    if args.set is not None:
        _say("Policy successfully set.")
    if not args.reg:
        return 0
    before = [_violable(gpu) for gpu in devices.gpus]
    _say("Listening for violations.")
    while True:
        for index, gpu in enumerate(devices.gpus):
            now = _violable(gpu)
            for key, value in now.items():
                if value > before[index][key]:
                    _say(f"Timestamp: {time.ctime()}")
                    _say(_WORDS[key].format(value=value))
            before[index] = now
        time.sleep(LOOK_S)


_WORDS = {
    "dbe": "A double-bit ECC error has violated policy manager values.\nDBE error count: {value}",
    "pci": "A PCIe replay event has violated policy manager values.\nPCIe replay count: {value}",
    "thermal": "The maximum thermal limit has violated policy manager values.\nTemperature: {value}",
    "nvlink": "NVLink Counter 409 has violated policy manager values.\nNVLink Counter value: {value}",
}


def _violable(gpu: Gpu) -> dict[str, int]:
    hot = gpu.temperature if gpu.temperature >= gpu.slowdown_c else 0
    flits = sum(gpu.links[link].crc_flit for link in range(gpu.link_count))
    return {"dbe": gpu.ecc[1][0], "pci": gpu.pcie_replay, "thermal": hot, "nvlink": flits}


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
