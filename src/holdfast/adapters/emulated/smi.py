"""The emulated `nvidia-smi`: summary, `-L`, `-q`, `--query-gpu` and `-r` over the shared state.

Started by the script that `devices.prepare` writes. Standard library only, so that it starts quickly. What a person
reads says that the GPUs are emulated; the CSV forms are those of the real tool, the name in them says it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.adapters.emulated import layout
from holdfast.adapters.emulated.layout import Devices, Gpu

LOST = "GPU is lost"
RECOVERY = {0: "None", 1: "Reset", 2: "Reboot", 3: "Drain P2P", 4: "Drain and Reset"}

_UNITS = {
    "temperature.gpu": " C",
    "power.draw": " W",
    "power.limit": " W",
    "memory.total": " MiB",
    "memory.used": " MiB",
}
FIELDS: dict[str, Callable[[Gpu], str]] = {
    "name": lambda gpu: gpu.name.decode(),
    "uuid": lambda gpu: gpu.uuid.decode(),
    "serial": lambda gpu: gpu.serial.decode(),
    "pci.bus_id": lambda gpu: gpu.bus_id.decode(),
    "driver_version": lambda _: layout.DRIVER,
    "temperature.gpu": lambda gpu: str(gpu.temperature),
    "power.draw": lambda gpu: f"{gpu.power_mw / 1000:.2f}",
    "power.limit": lambda gpu: f"{gpu.power_limit_mw / 1000:.2f}",
    "memory.total": lambda gpu: str(gpu.memory_total >> 20),
    "memory.used": lambda gpu: str(gpu.memory_used >> 20),
    "ecc.errors.corrected.volatile.total": lambda gpu: str(gpu.ecc[0][0]),
    "ecc.errors.uncorrected.volatile.total": lambda gpu: str(gpu.ecc[1][0]),
    "ecc.errors.corrected.aggregate.total": lambda gpu: str(gpu.ecc[0][1]),
    "ecc.errors.uncorrected.aggregate.total": lambda gpu: str(gpu.ecc[1][1]),
    "remapped_rows.correctable": lambda gpu: str(gpu.remap_corrected),
    "remapped_rows.uncorrectable": lambda gpu: str(gpu.remap_uncorrected),
    "remapped_rows.pending": lambda gpu: _yes(gpu.remap_pending),
    "remapped_rows.failure": lambda gpu: _yes(gpu.remap_failed),
    "pcie.link.gen.current": lambda gpu: str(gpu.pcie_gen),
    "pcie.link.gen.max": lambda gpu: str(gpu.pcie_gen_max),
    "pcie.link.width.current": lambda gpu: str(gpu.pcie_width),
    "pcie.link.width.max": lambda gpu: str(gpu.pcie_width_max),
    "clocks_event_reasons.active": lambda gpu: f"0x{gpu.throttle:016x}",
    "clocks_throttle_reasons.active": lambda gpu: f"0x{gpu.throttle:016x}",
}


def _yes(value: int) -> str:
    return "Yes" if value else "No"


def main(argv: list[str], folder: Path) -> int:
    """Run the command; returns its exit code, which is the real tool's."""
    parser = argparse.ArgumentParser(prog="nvidia-smi", description="Emulated GPUs: no hardware is behind this.")
    parser.add_argument("-L", "--list-gpus", action="store_true")
    parser.add_argument("-q", "--query", action="store_true")
    parser.add_argument("-r", "--gpu-reset", action="store_true")
    parser.add_argument("-i", "--id", default="")
    parser.add_argument("--query-gpu", default="")
    parser.add_argument("--format", default="csv")
    args = parser.parse_args(argv)
    with Devices(folder / "state") as devices:
        while devices.state.mode == layout.MODE_HANG:
            time.sleep(0.05)
        if devices.state.mode == layout.MODE_NO_DRIVER:
            _say(
                "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the "
                "latest NVIDIA driver is installed and running. (emulated)"
            )
            return 9
        if devices.state.mode == layout.MODE_REFUSED:
            _say("Failed to initialize NVML: Insufficient Permissions")
            return 4
        if devices.state.mode == layout.MODE_LOADING:
            _say("No devices were found")
            return 6
        try:
            chosen = [(index, devices.gpu(index)) for index in _chosen(args.id, devices)]
        except ValueError as error:
            _say(f"{error} (emulated)")
            return 6
        if args.gpu_reset:
            for index, gpu in chosen:
                devices.reset(index)
                _say(f"GPU {gpu.bus_id.decode()} was successfully reset. (emulated)")
            return 0
        lost = [(index, gpu) for index, gpu in chosen if gpu.lost]
        if args.list_gpus:
            for index, gpu in chosen:
                _say(
                    f"Unable to determine the device handle for gpu {gpu.bus_id.decode()}: {LOST}"
                    if gpu.lost
                    else f"GPU {index}: {gpu.name.decode()} (UUID: {gpu.uuid.decode()})"
                )
            return 0
        if lost:
            _say(
                f"Unable to determine the device handle for GPU{lost[0][0]}: {lost[0][1].bus_id.decode()}: {LOST}.  "
                "Reboot the system to recover this GPU"
            )
            return 15
        if args.query_gpu:
            return _csv(args.query_gpu, args.format, chosen)
        _say(_query(chosen) if args.query else _summary(chosen))
        return 0


def _chosen(text: str, devices: Devices) -> list[int]:
    if not text:
        return list(range(devices.state.count))
    found = []
    for part in text.split(","):
        match = [
            index
            for index, gpu in enumerate(devices.gpus)
            if part == str(index) or part.lower() in {gpu.uuid.decode().lower(), gpu.bus_id.decode().lower()}
        ]
        if not match:
            raise ValueError(f"No devices were found for id {part}")
        found += match
    return found


def _csv(query: str, form: str, chosen: list[tuple[int, Gpu]]) -> int:
    names = [name.strip() for name in query.split(",")]
    for name in names:
        if name != "index" and name not in FIELDS:
            _say(f'Field "{name}" is not a valid field to query.')
            return 2
    units = "nounits" not in form
    if "noheader" not in form:
        _say(", ".join(f"{name} [{_UNITS[name].strip()}]" if units and name in _UNITS else name for name in names))
    for index, gpu in chosen:
        told = [(name, str(index) if name == "index" else FIELDS[name](gpu)) for name in names]
        _say(", ".join(value + (_UNITS.get(name, "") if units else "") for name, value in told))
    return 0


def _summary(chosen: list[tuple[int, Gpu]]) -> str:
    line = "+" + "-" * 91 + "+"
    rows = [
        line,
        f"| {'NVIDIA-SMI (EMULATED GPUs, no hardware is behind them)':<58} Driver: {layout.DRIVER:<22} |",
        line,
    ]
    rows += [
        f"| {index:>2}  {gpu.name.decode():<34} {gpu.bus_id.decode():<18} {gpu.temperature:>3}C "
        f"{gpu.power_mw // 1000:>4}W / {gpu.power_limit_mw // 1000:>4}W  ECC {gpu.ecc[1][0]:>4} |"
        for index, gpu in chosen
    ]
    return "\n".join([*rows, line])


def _query(chosen: list[tuple[int, Gpu]]) -> str:
    out = [
        "",
        "==============NVSMI LOG============== (emulated GPUs)",
        "",
        f"{'Driver Version':<50}: {layout.DRIVER}",
        f"{'Attached GPUs':<50}: {len(chosen)}",
    ]
    for _, gpu in chosen:
        head = {
            "Product Name": gpu.name.decode(),
            "GPU UUID": gpu.uuid.decode(),
            "GPU Recovery Action": RECOVERY.get(gpu.recovery_action, "Unknown"),
        }
        out += [
            f"GPU {gpu.bus_id.decode()}",
            *(f"    {name:<46}: {value}" for name, value in head.items()),
            "    Remapped Rows",
            f"        {'Correctable Error':<42}: {gpu.remap_corrected}",
            f"        {'Uncorrectable Error':<42}: {gpu.remap_uncorrected}",
            f"        {'Pending':<42}: {_yes(gpu.remap_pending)}",
            f"        {'Remapping Failure Occurred':<42}: {_yes(gpu.remap_failed)}",
            "    Temperature",
            f"        {'GPU Current Temp':<42}: {gpu.temperature} C",
        ]
    return "\n".join(out)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
