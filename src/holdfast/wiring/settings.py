"""Where a command finds its settings and its controller: options, then environment, then `holdfast.toml`.

`holdfast.toml` is the first that exists of `--config FILE`, `HOLDFAST_CONFIG`, `./holdfast.toml`,
`~/.config/holdfast/holdfast.toml`, `/etc/holdfast/holdfast.toml`; files are not merged, and the one of the working
folder counts under conditions (`settings_places`). The controller is the first that is named by `--dir` or `--url`,
`HOLDFAST_CONTROLLER`, the file, else this machine's (`SITE_SOCKET`). An address gets no token that was meant for
another (`_token_for`), and a folder's controller is reached without one by its socket, where that answers. Called by
the command line; no time passes here.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.adapters.kubernetes.settings import KubernetesConfig
from holdfast.adapters.notice_settings import NotifyConfig
from holdfast.adapters.repair.settings import RepairConfig, problems_of
from holdfast.adapters.slurm.settings import SlurmConfig
from holdfast.drill.schedule import Schedule
from holdfast.drill.site_settings import SiteConfig
from holdfast.errors import ConfigError, LinkError, NotFoundError, RefusedError, UsageError
from holdfast.model.toml_lines import build, config_error, load_toml
from holdfast.model.wire import ADDRESS_SIZE_MAX, ControllerAddress
from holdfast.os.files import read_bounded
from holdfast.os.tls import CA_NAME, TlsFiles, Trust, trust_of
from holdfast.os.tokens import token_in
from holdfast.os.unix_sockets import SCHEME, SITE_SOCKET, address_beside, listener
from holdfast.wiring import settings_places
from holdfast.wiring.settings_places import FILE_NAME, is_found, named_file, places, read_found


class ReportConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[report]`: how this site's reports look."""

    zone: str = ""
    """Time zone, such as `Asia/Tokyo`."""
    language: str = ""
    """`en` or `ja`."""
    templates: str = ""
    """A folder with the site's own `report.html` or `report.md`."""
    prometheus: str = ""
    """Address of a Prometheus that the summary asks which alerts fired."""


class DrillConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[drill]`: drills on this cluster, and by a calendar."""

    site: SiteConfig = SiteConfig()
    results: str = ""
    """Folder of their results; default: `drill-results` in the working folder."""
    schedule: tuple[Schedule, ...] = ()


class TracesConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[traces]`: where traces of incidents go."""

    endpoint: str = ""
    """OTLP over HTTP, whole: `http://collector:4318/v1/traces`. Empty: OTEL_EXPORTER_OTLP_ENDPOINT, else nowhere."""
    headers_file: str = ""
    """A file of `name: value` lines that go with each request, mode 0600: they may hold a secret."""
    cluster: str = ""
    """The cluster's name in the traces; default: as the journal's jobs have it."""


class TlsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[tls]`: the certificate that the controller serves with. PEM files, read again when they change."""

    cert: str = ""
    """The certificate, then those between it and its authority."""
    key: str = ""
    """Its key, without a password."""
    client_ca: str = ""
    """Only clients with a certificate of this authority are let in (mTLS)."""


class ApiConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[api]`: what the controller's API shows to whom."""

    open_metrics: bool = False
    """`/metrics` names single jobs without a token, too."""


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `holdfast.toml` may say. Paths are relative to the file's own folder."""

    controller: str = ""
    """Address of the controller."""
    token_file: str = ""
    """File that holds the token for it, mode 0600."""
    ca_file: str = ""
    """Certificate authority that the controller's certificate is checked against; HOLDFAST_CA_FILE wins."""
    cert_file: str = ""
    """A client's certificate and key in one PEM file, where the controller asks for one; HOLDFAST_CERT_FILE wins."""
    plain_http: bool = False
    """Tokens may cross the network unencrypted; so says HOLDFAST_PLAIN_HTTP=1, too."""
    tls: TlsConfig = TlsConfig()
    dir: str = ""
    """Folder of an embedded cluster, in place of `controller` and `token_file`."""
    policy: str = ""
    """The policy file of the controller; `holdfast run` keeps to it too, where its user can read it."""
    cluster: str = ""
    """The cluster that the controller keeps, as its `--cluster`: `slurm:`, `slurm:/etc/slurm/slurm.conf`."""
    topology: str = ""
    """Which nodes share a switch, rack or power feed: a file (TOML, Slurm's topology.conf or .yaml), or `slurm`."""
    slurm: SlurmConfig = SlurmConfig()
    kubernetes: KubernetesConfig = KubernetesConfig()
    repair: RepairConfig = RepairConfig()
    notify: NotifyConfig = NotifyConfig()
    """Who is told of what: docs/notices.md."""
    traces: TracesConfig = TracesConfig()
    api: ApiConfig = ApiConfig()
    report: ReportConfig = ReportConfig()
    drill: DrillConfig = DrillConfig()
    log_rules: str = ""
    """HyperPod's log rules for jobs that `holdfast run` starts."""
    rules: str = ""
    """A folder of the site's own catalogue rules."""


def service_settings(option: Path | None = None) -> Settings:
    """What a service reads: `--config`, `HOLDFAST_CONFIG` or the site's file.

    Never one that lies in the working folder: it may name programs to run, so it must not be anybody's.

    Raises:
        ConfigError: see `load_settings`.
    """
    site = settings_places.SITE_FOLDER / FILE_NAME
    if option is None and not os.environ.get("HOLDFAST_CONFIG"):
        if not site.exists():
            return Settings(Config())
        option = site
    return load_settings(option)


class Settings(Struct, frozen=True):
    """A configuration and the file that it came from, None when there is none."""

    config: Config
    file: Path | None = None
    is_named: bool = False
    """The user named the file, by `--config` or `HOLDFAST_CONFIG`."""

    def path(self, value: str) -> Path | None:
        """A path of the file, made absolute; None for an empty one."""
        if not value:
            return None
        base = self.file.parent if self.file is not None else Path()
        return base / Path(value).expanduser()


class Link(Struct, frozen=True):
    """A controller that a command can talk to."""

    url: str
    token: str = ""
    trust: Trust = Trust()
    said_by: str = ""
    """Where the address came from, for error messages."""
    no_token: str = ""
    """Why a token that there is does not go there, and what to do about it."""


def default_folder() -> Path:
    """Where `holdfast cluster up` makes its cluster: under `$XDG_DATA_HOME`, else under `~/.local/share`."""
    base = os.environ.get("XDG_DATA_HOME", "")
    return (Path(base) if base else Path("~/.local/share").expanduser()) / "holdfast" / "clusters" / "local"


def load_settings(option: Path | None = None) -> Settings:
    """Read the first file of `places` that counts.

    Raises:
        ConfigError: a wrong key or value, by file, line and nearest right key; or the named file cannot be read.
    """
    candidates = places(option)
    for path in candidates:
        try:
            written = read_found(path) if is_found(path) and len(candidates) > 1 else path.read_bytes()
            if written is None:
                continue
            text = written.decode("utf-8")
        except (FileNotFoundError, NotADirectoryError):
            if len(candidates) == 1:
                raise ConfigError("there is no such file", file=str(path)) from None
            continue
        except UnicodeDecodeError as error:
            raise ConfigError(f"is not UTF-8 text (byte {error.start})", file=str(path)) from error
        except OSError as error:
            raise ConfigError(f"cannot be read: {error.strerror}", file=str(path)) from error
        data: dict[str, Any] = load_toml(text, str(path))
        config = build(Config, data, text, str(path))
        if problems := problems_of(config.repair):
            raise config_error(problems, text, str(path))
        return Settings(config, path, named_file(option) is not None)
    return Settings(Config())


def find_controller(*, cluster_dir: Path | None = None, url: str | None = None, config: Path | None = None) -> Link:
    """The controller that this command is about.

    Raises:
        UsageError: `--dir` and `--url` together, or an address of another kind than http, https and unix.
        LinkError: none is named anywhere, or none has ever run in the named folder.
        RefusedError: its token cannot be read.
        ConfigError: see `load_settings`.
    """
    if cluster_dir is not None and url is not None:
        raise UsageError("--dir and --url name two controllers: give one of them")
    if cluster_dir is not None and config is None:
        return _of_folder(cluster_dir, "--dir", Settings(Config()))
    settings = load_settings(config)
    if cluster_dir is not None:
        return _of_folder(cluster_dir, "--dir", settings)
    named = os.environ.get("HOLDFAST_CONTROLLER", "")
    if url is not None or named:
        return _of_url(url or named, "--url" if url is not None else "HOLDFAST_CONTROLLER", settings)
    if settings.config.controller:
        return _of_url(settings.config.controller, str(settings.file), settings)
    folder = settings.path(settings.config.dir)
    if folder is not None:
        return _of_folder(folder, str(settings.file), settings)
    if os.path.lexists(SITE_SOCKET):
        listener(SITE_SOCKET)
        return Link(f"{SCHEME}{SITE_SOCKET}", said_by="this machine's controller")
    raise LinkError(
        "no controller is named: give --dir CLUSTER_DIR or --url URL, set HOLDFAST_CONTROLLER, or write "
        f'`controller = "http://..."` into {FILE_NAME}{_hint()}'
    )


def cluster_folder(given: Path | None, config: Path | None, *, otherwise: str) -> Path:
    """The cluster's folder that a command is about: `--dir`, or what holdfast.toml names.

    Raises:
        UsageError: neither names one; the sentence is `otherwise`.
        ConfigError: see `load_settings`.
    """
    if given is not None:
        return given
    settings = load_settings(config)
    folder = settings.path(settings.config.dir)
    if folder is None:
        raise UsageError(otherwise)
    return folder


def _hint() -> str:
    """The embedded cluster of `holdfast cluster up`, when it has a controller: most likely that one is meant."""
    try:
        folder = default_folder()
    except RuntimeError:  # a user without a home
        return ""
    return f"; an embedded cluster is at --dir {folder}" if (folder / "controller" / "controller.json").exists() else ""


def _of_folder(folder: Path, said_by: str, settings: Settings) -> Link:
    facts = folder / "controller" / "controller.json"
    if local := address_beside(facts):
        return Link(local, said_by=f"{said_by} {folder}")
    try:
        text = read_bounded(facts, ADDRESS_SIZE_MAX)
    except FileNotFoundError:
        if not os.path.isdir(folder):  # noqa: PTH112 - Path.is_dir raises where a folder above may not be read
            raise NotFoundError(f"{said_by}: there is no folder {folder}") from None
        raise LinkError(
            f"no controller runs in {folder} (no controller/controller.json): start one, or give its --url"
        ) from None
    except PermissionError as error:
        raise RefusedError(f"{facts} may not be read by you: ask its owner, or use --url and a token") from error
    except OSError as error:
        raise LinkError(f"{facts} cannot be read: {error.strerror}") from error
    try:
        url = msgspec.json.decode(text, type=ControllerAddress).url
    except msgspec.DecodeError as error:
        raise ConfigError(f"is not a controller's file: {error}", file=str(facts)) from error
    file = folder / "controller" / "token"
    _check_inside(file, folder / "controller")
    token = read_token(file, missing_ok=True)
    if token and not is_one_hand(facts.stat(), file.stat()):
        raise RefusedError(f"{facts} may be written by others than the owner of {file}: chmod go-w it, or use --url")
    trust = msgspec.structs.replace(_trust(settings), munge=None)
    own_ca = folder / "controller" / CA_NAME
    if trust.ca_file is None and own_ca.exists():
        trust = msgspec.structs.replace(trust, ca_file=own_ca)
    return Link(url, token, trust, f"{said_by} {folder}")


def is_one_hand(address: os.stat_result, token: os.stat_result) -> bool:
    """Whether nobody but the owner of the token, or root, has written the address that it goes to."""
    return address.st_uid in {0, token.st_uid} and not address.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _of_url(url: str, said_by: str, settings: Settings) -> Link:
    if not url.startswith(("http://", "https://", f"{SCHEME}/")):
        raise UsageError(
            f"{said_by}: {url!r} is not an address: write it like http://127.0.0.1:8470, or {SCHEME}{SITE_SOCKET}"
        )
    url = url.rstrip("/")
    path, why_not = _token_for(url, said_by, settings)
    token = read_token(path) if path is not None else ""
    trust = _trust(settings if _is_of(url, said_by, settings) else Settings(Config()))
    if _is_stray(said_by, settings):  # whoever listens there could show the credential to the true controller
        trust = msgspec.structs.replace(trust, munge=None)
    return Link(url, token, trust, said_by, why_not)


def _trust(settings: Settings) -> Trust:
    """What the file says of its controller, below what the environment says."""
    config = settings.config
    munge = config.slurm.munge_socket if config.slurm.munge else None
    said = Trust(settings.path(config.ca_file), settings.path(config.cert_file), config.plain_http, munge)
    return trust_of(os.environ, said)


def tls_files(settings: Settings) -> TlsFiles | None:
    """What the controller serves with; None: plain HTTP.

    Raises:
        ConfigError: a certificate without a key, or the other way round.
    """
    said = settings.config.tls
    cert, key = settings.path(said.cert), settings.path(said.key)
    if cert is None and key is None and not said.client_ca:
        return None
    if cert is None or key is None:
        raise ConfigError("[tls] needs both `cert` and `key`", file=str(settings.file))
    return TlsFiles(cert, key, settings.path(said.client_ca))


def _token_for(url: str, said_by: str, settings: Settings) -> tuple[Path | None, str]:
    """The file of the token that may go to this address, or None and why none of those that are named may.

    What the user names (`--url`, the two environment variables, a file by `--config`) goes together. A file that was
    looked for gives its token to its own address alone, and the address of the working folder's file gets nothing but
    a token that lies beside it: who placed that file must not learn what else the user has.

    Raises:
        RefusedError: the working folder's file names a token that lies elsewhere.
    """
    from_environment = os.environ.get("HOLDFAST_TOKEN_FILE", "")
    is_stray = _is_stray(said_by, settings)
    if from_environment and not is_stray:
        return Path(from_environment), ""
    path = settings.path(settings.config.token_file)
    if path is not None and not _is_of(url, said_by, settings):
        return None, f"the token of {settings.file} is for its own address: set HOLDFAST_TOKEN_FILE for this one"
    if path is not None and is_stray:
        _check_inside(path, Path())
    if path is None and from_environment:
        return None, (
            "HOLDFAST_TOKEN_FILE is not sent to an address that a file of the working folder names: "
            "name it yourself by --url, or the file by --config"
        )
    return path, ""


def _is_stray(said_by: str, settings: Settings) -> bool:
    """Is the address named by a file of the working folder, and by nothing that the user said?"""
    return said_by == str(settings.file) and is_found(settings.file) and not settings.is_named


def _is_of(url: str, said_by: str, settings: Settings) -> bool:
    """Does what the file says about its controller hold for this address?"""
    if said_by == str(settings.file) or settings.is_named:
        return True
    own = settings.config.controller.rstrip("/")
    return own == url or (not own and not is_found(settings.file))


def _check_inside(token: Path, folder: Path) -> None:
    """Raise RefusedError where a token, links followed, lies outside the folder that names its controller."""
    if not token.resolve().is_relative_to(folder.resolve()):
        raise RefusedError(
            f"{token} lies outside {folder.resolve()}, which names the address that it would go to: "
            "put the token there, or name both yourself by --url and HOLDFAST_TOKEN_FILE, or by --config"
        )


def read_token(path: Path, *, missing_ok: bool = False) -> str:
    """The token in a file, without the line's end.

    Raises:
        RefusedError: the file may not be read.
        ConfigError: there is no such file (unless `missing_ok`), it is empty, or holds something else.
    """
    try:
        token = token_in(path.expanduser())
    except FileNotFoundError:
        if missing_ok:
            return ""
        raise ConfigError("there is no such token file", file=str(path)) from None
    except PermissionError as error:
        raise RefusedError(f"the token file {path} may not be read by you: ask its owner for a token") from error
    except OSError as error:
        raise ConfigError(f"is not a token file: {error.strerror}", file=str(path)) from error
    if not token:
        raise ConfigError("the token file is empty", file=str(path))
    return token
