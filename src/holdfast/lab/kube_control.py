"""The control plane's command lines and files: etcd, API server, controller manager, scheduler, all on loopback.

`kube_keeper` starts and watches them. Pure but for `write_files`. No time passes here.
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path

from msgspec import Struct

from holdfast.errors import LinkError
from holdfast.lab.kube_build import KubeBinaries
from holdfast.os.programs import Command, run_blocking

ETCD, API, CONTROLLERS, SCHEDULER = "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"
DAEMONS = (ETCD, API, CONTROLLERS, SCHEDULER)
PORTS = 6
"""A lab takes so many ports in a row: API server, etcd for clients and for peers, two of the others, kubelets' logs."""


class ControlPlane(Struct, frozen=True, kw_only=True):
    """Where it lies and what it is made of."""

    folder: Path
    """`LAB/kube`."""
    binaries: KubeBinaries
    port: int
    node_grace_s: int = 8
    """A node whose kubelet is silent this long becomes Unknown (a real cluster's default is 40 s, or 50 s)."""

    @property
    def server(self) -> str:
        """The API server's address."""
        return f"https://127.0.0.1:{self.port}"

    @property
    def etcd(self) -> str:
        """Etcd's address for clients."""
        return f"http://127.0.0.1:{self.port + 1}"

    @property
    def logs_port(self) -> int:
        """Where the API server asks for containers' output."""
        return self.port + 5

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.folder / "kubeconfig"

    @property
    def certificate(self) -> Path:
        """What the API server shows; it signs itself."""
        return self.folder / "certs" / "apiserver.crt"

    @property
    def key(self) -> Path:
        """The certificate's."""
        return self.certificate.with_suffix(".key")

    def log(self, daemon: str) -> Path:
        """A daemon's log."""
        return self.folder / f"{daemon}.log"

    def argv(self, daemon: str) -> list[str]:
        """A daemon's command line."""
        return {ETCD: self._etcd, API: self._api, CONTROLLERS: self._controllers, SCHEDULER: self._scheduler}[daemon]()

    def _etcd(self) -> list[str]:
        peer = f"http://127.0.0.1:{self.port + 2}"
        words = ["etcd", "--name", "lab", "--data-dir", str(self.folder / "etcd")]
        words += ["--listen-client-urls", self.etcd, "--advertise-client-urls", self.etcd]
        words += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"lab={peer}"]
        # A lab's records are thrown away with it; many small transactions come fast.
        return [*words, "--snapshot-count", "100000", "--quota-backend-bytes", str(2 << 30)]

    def _api(self) -> list[str]:
        keys = self.folder
        words = [self.binaries.path(API), f"--etcd-servers={self.etcd}", "--bind-address=127.0.0.1"]
        words += ["--advertise-address=127.0.0.1", f"--secure-port={self.port}", f"--cert-dir={keys / 'certs'}"]
        words += ["--service-cluster-ip-range=10.0.0.0/24", f"--token-auth-file={keys / 'tokens.csv'}"]
        words += ["--authorization-mode=RBAC", "--allow-privileged=true", "--anonymous-auth=false"]
        words += ["--service-account-issuer=https://kubernetes.default.svc"]
        words += [f"--service-account-key-file={keys / 'sa.pub'}"]
        words += [f"--service-account-signing-key-file={keys / 'sa.key'}"]
        words += ["--kubelet-preferred-address-types=InternalIP"]  # a node's name is known to nobody here
        return [*words, "--endpoint-reconciler-type=none", "--profiling=false", "--event-ttl=1h"]

    def _common(self, name: str, offset: int) -> list[str]:
        config = f"{self.kubeconfig}"
        words = [self.binaries.path(name), f"--kubeconfig={config}", f"--authentication-kubeconfig={config}"]
        words += [f"--authorization-kubeconfig={config}", "--authentication-skip-lookup=true"]
        words += ["--bind-address=127.0.0.1", f"--secure-port={self.port + offset}", "--port=0"]
        return [*words, f"--cert-dir={self.folder / name}", "--leader-elect=false"]

    def _controllers(self) -> list[str]:
        words = self._common(CONTROLLERS, 3)
        words += [f"--service-account-private-key-file={self.folder / 'sa.key'}", "--controllers=*"]
        words += [f"--node-monitor-grace-period={self.node_grace_s}s", "--node-monitor-period=1s"]
        return [*words, "--kube-api-qps=200", "--kube-api-burst=400"]

    def _scheduler(self) -> list[str]:
        return [*self._common(SCHEDULER, 4), "--kube-api-qps=500", "--kube-api-burst=1000"]

    def write_files(self) -> None:
        """Keys, tokens and the administrator's kubeconfig; what is there already stays.

        Raises:
            LinkError: openssl failed.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        key = self.folder / "sa.key"
        if not key.exists():
            for argv in (
                ("openssl", "genrsa", "-out", str(key), "2048"),
                ("openssl", "rsa", "-in", str(key), "-pubout", "-out", str(self.folder / "sa.pub")),
            ):
                ran = run_blocking(Command(argv=argv), 60.0)
                if ran.code != 0:
                    raise LinkError(f"{' '.join(argv[:2])} failed: {ran.err.strip()}")
        tokens = self.folder / "tokens.csv"
        if not tokens.exists():
            tokens.touch(mode=0o600)
            tokens.write_text(f'{secrets.token_hex(16)},admin,1,"system:masters"\n', encoding="ascii")
        token = tokens.read_text(encoding="ascii").partition(",")[0]
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "lab", "cluster": {"server": self.server, "certificate-authority": str(self.certificate)}}
            ],
            "users": [{"name": "admin", "user": {"token": token}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "admin"}}],
            "current-context": "lab",
        }
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")  # JSON is YAML
