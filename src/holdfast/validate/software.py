"""The `software` suite: versions, driver, limits, container, variables that hurt. A step; imports no framework.

Versions are read from installed packages' own records, so that nothing heavy is loaded. What must be equal on all
nodes of a fleet is marked so. No time passes here but that of `fi_info --version`.
"""

from __future__ import annotations

import os
import platform
import re
import resource
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path

from msgspec import Struct

from holdfast.os.files import text_of
from holdfast.validate import tool_runs
from holdfast.validate.registry import Options
from holdfast.validate.results import Item, failed, warned

PACKAGES = re.compile(
    r"^(torch|torchvision|torchaudio|triton|pytorch-triton(-rocm)?|numpy|transformers|accelerate|deepspeed|lightning|"
    r"pytorch-lightning|megatron-core|nemo-toolkit|transformer-engine(-torch|-cu\d+)?|flash-attn|apex|xformers|jax|jaxlib|"
    r"nvidia-(nccl|cudnn|cublas|cuda-runtime|nvshmem)(-cu\d+)?|nvidia-ml-py|mpi4py|ray|msgspec|libneuronxla|neuronx-cc|"
    r"torch-neuronx|aws-neuronx-.*)$"
)
"""Packages whose versions must agree between the ranks of a job."""
SHM_MIN = 1 << 30
NOFILE_MIN = 4096
CHECKED_MODULES = ("nvidia", "efa", "gdrdrv", "ib_core", "mlx5_core", "amdgpu", "neuron", "lustre")


_CONTAINERS = {
    "KUBERNETES_SERVICE_HOST": "kubernetes",
    "SINGULARITY_NAME": "apptainer",
    "APPTAINER_NAME": "apptainer",
    "ENROOT_ROOTFS": "enroot",
    "SLURM_CONTAINER": "enroot",
}
"""Variable -> the kind of container that sets it."""


class Hurts(Struct, frozen=True, kw_only=True):
    """A variable that costs speed or hides faults when it stands in a job's environment."""

    name: str
    when: Callable[[str], bool]
    why: str
    advice: str


def _on(value: str) -> bool:
    return value.strip().lower() not in {"", "0", "false", "no", "off"}


HURTS = (
    Hurts(name="CUDA_LAUNCH_BLOCKING", when=_on, why="every kernel waits for its end", advice="unset it"),
    Hurts(name="NCCL_P2P_DISABLE", when=_on, why="GPUs of a node talk through host memory", advice="unset it"),
    Hurts(name="NCCL_SHM_DISABLE", when=_on, why="processes of a node talk through the network", advice="unset it"),
    Hurts(name="NCCL_IB_DISABLE", when=_on, why="NCCL leaves InfiniBand for TCP", advice="unset it on RDMA nodes"),
    Hurts(name="NCCL_NET_GDR_LEVEL", when=lambda v: v.strip().upper() in {"0", "LOC"},
          why="no GPUDirect RDMA: data goes through host memory", advice="unset it"),
    Hurts(name="NCCL_DEBUG", when=lambda v: v.strip().upper() == "TRACE", why="NCCL writes a line per call",
          advice="use INFO or WARN"),
    Hurts(name="NCCL_ALGO", when=_on, why="NCCL's choice of algorithm by size is fixed", advice="unset it"),
    Hurts(name="NCCL_PROTO", when=_on, why="NCCL's choice of protocol by size is fixed", advice="unset it"),
    Hurts(name="TORCH_DISTRIBUTED_DEBUG", when=lambda v: v.strip().upper() == "DETAIL",
          why="every collective is checked against all ranks first", advice="use INFO or OFF"),
    Hurts(name="TORCH_NCCL_BLOCKING_WAIT", when=_on, why="every collective blocks the host",
          advice="unset it; TORCH_NCCL_ASYNC_ERROR_HANDLING is on by default"),
    Hurts(name="TORCH_NCCL_ASYNC_ERROR_HANDLING", when=lambda v: v.strip() == "0",
          why="a failed collective hangs for ever instead of ending the rank", advice="unset it"),
    Hurts(name="PYTORCH_NO_CUDA_MEMORY_CACHING", when=_on, why="every allocation asks the driver", advice="unset it"),
    Hurts(name="FI_PROVIDER", when=lambda v: v.strip().lower() in {"tcp", "sockets", "udp"},
          why="libfabric is told to use TCP", advice="set it to efa, or unset it"),
    Hurts(name="FI_LOG_LEVEL", when=lambda v: v.strip().lower() in {"debug", "trace"}, why="libfabric logs each call",
          advice="use warn"),
    Hurts(name="LD_PRELOAD", when=lambda v: bool(v.strip()), why="a library is put before all others",
          advice="see that it is wanted here"),
)  # fmt: skip
"""Meanings: documentation of NCCL (environment variables), PyTorch (CUDA and distributed), libfabric."""


def hurting(env: Mapping[str, str], interfaces: frozenset[str]) -> list[Item]:
    """Variables that hurt, and an interface that is not there. Pure."""
    found = []
    for one in HURTS:
        value = env.get(one.name, "")
        if value and one.when(value):
            found.append(warned(f"software.env.{one.name}", one.why, one.advice, text=f"{one.name}={value}"))
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        value = env.get(name, "").strip()
        if not value or value.startswith("^"):
            continue
        exact = value.startswith("=")
        wanted = [word for word in value.lstrip("=").split(",") if word]
        prefix = name.startswith("NCCL") and not exact
        if not any(here == word or (prefix and here.startswith(word)) for here in interfaces for word in wanted):
            why = f"there is no such interface: {', '.join(sorted(interfaces)) or 'none'} are here"
            found.append(failed(f"software.env.{name}", why, "name one of them", text=f"{name}={value}"))
    return found


def limits(rdma: bool, memlock: int, nofile: int, shm_bytes: int) -> list[Item]:
    """Limits of this process and the size of /dev/shm, judged. Pure; -1 stands for unlimited."""

    def one(name: str, text: str, why: str, advice: str, *, bad: bool) -> Item:
        return warned(f"software.{name}", why, advice, text=text) if bad else _fact(f"software.{name}", text)

    locked = "unlimited" if memlock < 0 else f"{memlock // 1024} KiB"
    why = "RDMA must lock its buffers in memory and fails, or falls back to TCP"
    advice = "ulimit -l unlimited (slurmd: LimitMEMLOCK=infinity)"
    items = [one("limit.memlock", locked, why, advice, bad=rdma and memlock >= 0)]
    why = "data loaders and many ranks run out of file descriptors"
    files = "unlimited" if nofile < 0 else str(nofile)
    items.append(one("limit.nofile", files, why, f"ulimit -n {NOFILE_MIN} or more", bad=0 <= nofile < NOFILE_MIN))
    if shm_bytes >= 0:
        why = "data loaders and NCCL share memory through /dev/shm; too little ends in bus errors"
        advice = "container: --shm-size=1g or more, or --ipc=host"
        items.append(one("shm", f"{shm_bytes >> 20} MiB", why, advice, bad=shm_bytes < SHM_MIN))
    return items


def _fact(name: str, text: str, *, same: bool = False) -> Item:
    return Item(name=name, text=text, same=same)


def look(options: Options) -> list[Item]:
    """The step."""
    del options
    items = [
        _fact("software.kernel", platform.release(), same=True),
        _fact("software.system", _system(), same=True),
        _fact("software.python", platform.python_version(), same=True),
        _fact("software.libc", " ".join(platform.libc_ver()), same=True),
        _fact("software.container", container(), same=True),
    ]
    for module in CHECKED_MODULES:
        version = text_of(Path("/sys/module", module, "version"))[:80]
        items += [_fact(f"software.driver.{module}", version, same=True)] if version else []
    items += [_fact(f"software.package.{name}", version, same=True) for name, version in packages()]
    items += _libfabric()
    rdma = any(Path("/sys/class/infiniband").glob("*"))
    shm = os.statvfs("/dev/shm") if Path("/dev/shm").is_dir() else None  # noqa: S108 - the mount itself is looked at
    items += limits(
        rdma,
        resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        shm.f_blocks * shm.f_frsize if shm is not None else -1,
    )
    interfaces = frozenset(path.name for path in Path("/sys/class/net").glob("*"))
    return items + hurting(os.environ, interfaces)


def packages() -> list[tuple[str, str]]:
    """Installed packages that matter, as this Python finds them: the first on its path counts."""
    found: dict[str, str] = {}
    for one in metadata.distributions():
        name = (one.name or "").lower().replace("_", "-")
        if PACKAGES.match(name):
            found.setdefault(name, one.version)
    return sorted(found.items())


def container() -> str:
    """Which kind of container this runs in; `none`."""
    for mark, kind in (("/.dockerenv", "docker"), ("/run/.containerenv", "podman")):
        if Path(mark).exists():
            return kind
    return next((kind for name, kind in _CONTAINERS.items() if os.environ.get(name)), "none")


def _libfabric() -> list[Item]:
    path = tool_runs.where("fi_info")
    if not path:
        return []
    done = tool_runs.run((path, "--version"), 10.0)
    found = re.search(r"^libfabric: (\S+)", done.out, re.MULTILINE)
    return [_fact("software.libfabric", found.group(1), same=True)] if found else []


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return platform.system()
