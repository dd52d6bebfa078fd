"""The process that reads what can hang: NVML, /sys, mounted file systems. Started by `reader.Reader`, asked by lines.

One JSON object per line in (`{"id": 1, "read": "nvml", "args": {...}}`), one out: `{"id": 1, "facts": ...}`, or
`absent` or `failed` with the reason. It lives on between requests, so that NVML is loaded once; when NVML itself fails
it ends, and the next request starts it anew. Its parent kills it when an answer is late. Standard library and pynvml
only.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.adapters.probes import nvml_reading, sysfs_reading

READS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "infiniband": lambda args: sysfs_reading.infiniband(Path(args["root"])),
    "nics": lambda args: sysfs_reading.nics(Path(args["root"])),
    "neuron": lambda args: sysfs_reading.neuron(Path(args["root"])),
    "kernel": lambda args: sysfs_reading.xid_lines(Path(args["path"])),
    "edac": lambda args: sysfs_reading.edac(Path(args["root"])),
    "node": lambda args: sysfs_reading.node(Path(args["root"])),
    "pci": lambda args: sysfs_reading.pci(Path(args["root"])),
    "processes": lambda args: sysfs_reading.processes(Path(args["root"]), args.get("job", "")),
    "running": lambda args: sysfs_reading.running(Path(args["root"])),
    "mounts": lambda args: sysfs_reading.mounts(Path(args["root"])),
    "statvfs": lambda args: sysfs_reading.statvfs(args["point"]),
    "write": lambda args: sysfs_reading.write_probe(Path(args["folder"])),
    "nvml": nvml_reading.read,
}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The answer to one request; never raises."""
    name = request.get("read", "")
    try:
        return {"facts": READS[name](request.get("args", {}))}
    except sysfs_reading.AbsentError as error:
        return {"absent": str(error)}
    except nvml_reading.NvmlGoneError as error:
        return {"absent": str(error), "over": True}
    except nvml_reading.NvmlFailedError as error:
        return {"failed": str(error), "over": True}
    except Exception as error:  # noqa: BLE001 - whatever a driver or file system does, the agent must get an answer
        return {"failed": f"{type(error).__name__}: {error}"}


def main() -> int:
    """Answer until the parent closes its end."""
    stream = os.fdopen(sys.stdin.fileno(), "rb", buffering=0)
    while line := stream.readline():
        request = json.loads(line)
        reply = answer(request)
        over = reply.pop("over", False)
        sys.stdout.write(json.dumps({"id": request.get("id"), **reply}) + "\n")
        sys.stdout.flush()
        if over:
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
