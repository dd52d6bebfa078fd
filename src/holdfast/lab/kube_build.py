"""The control plane's programs, built once from the distribution's source package and kept in a cache.

No registry ships a prebuilt API server, but Debian's source package `kubernetes` is complete: it builds offline in
about five minutes of two cores. `binaries` gives what the cache has and builds what it lacks; one build at a time on a
machine, others wait for it. apt is used with a configuration of its own, so that the machine's stays as it is.
Called by `kube_lab`, the command line and `make`. Time: a build takes minutes and says where its log is.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct

from holdfast.errors import LinkError, UsageError
from holdfast.lab import packages
from holdfast.lab.settings import cache_folder
from holdfast.lab.waiting import ends, run_step
from holdfast.os.files import locked

PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
SOURCES = ("kubernetes", "golang-github-modern-go-reflect2")
TOOLS = {
    "go": "golang-go",
    "etcd": "etcd-server",
    "etcdctl": "etcd-client",
    "dpkg-source": "dpkg-dev",
    "make": "make",
    "rsync": "rsync",
    "jq": "jq",
    "openssl": "openssl",
}
"""Program -> the Debian package that holds it."""
RUNS = ("etcd", "etcdctl", "openssl")
"""Of these, what a built lab goes on to need."""
DONE = "complete"
Say = Callable[[str], None]
_run = partial(run_step, "no Kubernetes lab")


class KubeBinaries(Struct, frozen=True):
    """Where the programs lie, and the source package's version."""

    folder: Path
    version: str

    def path(self, program: str) -> str:
        """The program, as an argument."""
        return str(self.folder / program)


def cache() -> Path:
    """Where built programs are kept, a folder for each version of the source package."""
    return cache_folder("kubernetes")


def built() -> KubeBinaries | None:
    """The newest whole build in the cache; None when there is none."""
    marks = sorted(cache().glob(f"*/{DONE}"), key=lambda mark: mark.stat().st_mtime)
    return KubeBinaries(marks[-1].parent, marks[-1].parent.name) if marks else None


def _missing(programs: Sequence[str]) -> list[str]:
    return packages.missing(programs, os.environ.get("PATH", os.defpath))


def why_not() -> str:
    """Why there is no lab here and none can be built, in one line; empty when there is a way."""
    lacking = _missing(RUNS if built() is not None else tuple(TOOLS))
    if not lacking or (os.geteuid() == 0 and shutil.which("apt-get")):
        return ""
    wanted = " ".join(dict.fromkeys(TOOLS[program] for program in lacking))
    return f"{', '.join(lacking)} missing; as root on Debian: {packages.INSTALL} {wanted}"


def binaries(say: Say = lambda _: None) -> KubeBinaries:
    """The programs, built now if need be.

    Raises:
        UsageError: a tool is missing; says how to get it.
        LinkError: the build failed; holds the end of its log.
    """
    problem = why_not()
    if problem:
        raise UsageError(f"no Kubernetes lab here: {problem}")
    cache().mkdir(parents=True, exist_ok=True)
    with locked(cache() / "lock", wait_s=None, on_wait=lambda: say("another build is under way: waiting for it")):
        found = built()
        _install(RUNS if found is not None else tuple(TOOLS), say)
        return found if found is not None else _build(say)


def _install(programs: Sequence[str], say: Say) -> None:
    lacking = _missing(programs)
    if not lacking:
        return
    wanted = list(dict.fromkeys(TOOLS[program] for program in lacking))
    say(f"installing {' '.join(wanted)}")
    log = cache() / "apt.log"
    # A daemon's package would start its service; while it is installed a policy says no.
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n", encoding="ascii")
        policy.chmod(0o755)
    try:
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        apt = ["apt-get", "-o", "DPkg::Lock::Timeout=600"]
        _run([*apt, "update", "-qq"], log, env=environment, may_fail=True)
        _run([*apt, "install", "-y", "-qq", "--no-install-recommends", *wanted], log, env=environment)
    finally:
        if ours:
            policy.unlink(missing_ok=True)


def deb_src(text: str, *, deb822: bool) -> str:
    """The same apt sources, asking for source packages. Entries that hold no `main` of Debian are left out."""
    if deb822:
        stanzas = [
            s for s in re.split(r"\n\s*\n", text) if re.search(r"(?m)^Components:.*\bmain\b", s) and "debian" in s
        ]
        return "\n\n".join(re.sub(r"(?m)^Types:.*$", "Types: deb-src", stanza) for stanza in stanzas)
    lines = [line for line in text.splitlines() if re.match(r"deb\s.*debian.*\smain\b", line)]
    return "\n".join(re.sub(r"^deb\s", "deb-src ", line) for line in lines)


def _sources(into: Path) -> None:
    """Apt sources of this machine, for source packages, in a folder of their own."""
    etc = Path("/etc/apt")
    for file in [*etc.glob("sources.list.d/*.sources"), *etc.glob("sources.list.d/*.list"), etc / "sources.list"]:
        if file.is_file():
            deb822 = file.suffix == ".sources"
            text = deb_src(file.read_text(encoding="utf-8", errors="replace"), deb822=deb822)
            if text:
                name = f"{file.stem}.sources" if deb822 else f"{file.stem}.list"
                (into / name).write_text(f"{text}\n", encoding="utf-8")
    if not any(into.iterdir()):
        raise UsageError("no Kubernetes lab here: /etc/apt names no Debian archive to get the source package from")


def _build(say: Say) -> KubeBinaries:
    say("building Kubernetes' control plane from its source package: about five minutes of two cores, once")
    log = cache() / "build.log"
    log.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="holdfast-kube-") as made:
        folder = Path(made)
        version = _fetch(folder, log)
        source = folder / "kubernetes"
        _swap_reflect2(folder / SOURCES[1], source)
        (source / ".go/src/k8s.io").mkdir(parents=True)
        (source / ".go/src/k8s.io/kubernetes").symlink_to("../../..")
        environment = {
            **os.environ,
            "GOPATH": str(source / ".go"),
            "GOCACHE": str(folder / "gocache"),
            "CGO_ENABLED": "0",
            "GOPROXY": "off",
            "GOFLAGS": "",
        }
        _run(["make", "generated_files"], log, env=environment, cwd=source)
        out = folder / "bin"
        wanted = [f"k8s.io/kubernetes/cmd/{program}" for program in PROGRAMS]
        argv = ["go", "build", "-trimpath", "-ldflags", "-s -w", "-o", f"{out}/", *wanted]
        inside = source / ".go/src/k8s.io/kubernetes"
        # PWD: go looks for GOPATH packages by the path that was gone to, not by the one behind the link.
        _run(argv, log, env={**environment, "GO111MODULE": "off", "PWD": str(inside)}, cwd=inside)
        return keep(out, version)


def keep(out: Path, version: str) -> KubeBinaries:
    """Put built programs into the cache, whole or not at all."""
    final = cache() / version
    staged = cache() / f".{version}.new"
    shutil.rmtree(staged, ignore_errors=True)
    shutil.rmtree(final, ignore_errors=True)
    shutil.copytree(out, staged)
    (staged / DONE).touch()
    staged.rename(final)
    return KubeBinaries(final, version)


def _fetch(folder: Path, log: Path) -> str:
    """Get and unpack both source packages; returns the version of `kubernetes`."""
    sources = folder / "apt" / "sources"
    for sub in ("lists/partial", "cache", "sources"):
        (folder / "apt" / sub).mkdir(parents=True)
    _sources(sources)
    options = {
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": str(sources),
        "Dir::State::lists": str(folder / "apt" / "lists"),
        "Dir::Cache": str(folder / "apt" / "cache"),
        "APT::Sandbox::User": "root" if os.geteuid() == 0 else "",
    }
    apt = ["apt-get", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]
    _run([*apt, "update"], log)
    _run([*apt, "source", "--download-only", *SOURCES], log, cwd=folder)
    for name in SOURCES:
        described = sorted(folder.glob(f"{name}_*.dsc"))
        if not described:
            raise LinkError(f"apt-get brought no source package {name}{ends(log)}")
        _run(["dpkg-source", "--no-check", "-x", described[-1].name, name], log, cwd=folder)
    return max(folder.glob("kubernetes_*.dsc")).stem.partition("_")[2]


def _swap_reflect2(newer: Path, source: Path) -> None:
    """The vendored copy panics with Go 1.18 and later as soon as an object is created; Debian packages a newer one."""
    vendored = source / "vendor/github.com/modern-go/reflect2"
    for old in [*vendored.glob("*.go"), *vendored.glob("*.s")]:
        old.unlink()
    for new in [*newer.glob("*.go"), *newer.glob("*.s")]:
        if not new.name.endswith("_test.go"):
            shutil.copy(new, vendored)
