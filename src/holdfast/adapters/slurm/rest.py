"""Looks by slurmrestd, where a site runs it: the documents of `squeue --json` and `scontrol show nodes --json`.

No process is started for them. Only looking goes this way; orders, configuration and accounting stay with Slurm's
tools, which are also what is asked while slurmrestd is away. Called by `looks.py`. Time passes while an answer is
waited for.
"""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
from msgspec import Struct

from holdfast.errors import ConfigError, LinkError
from holdfast.os.files import read_bounded
from holdfast.os.tokens import SIZE_MAX

LIMIT_S = 20.0
"""For one answer, as for Slurm's tools."""
TOKEN_HEADER = "X-SLURM-USER-TOKEN"  # noqa: S105 - a header's name
_LOCAL = {"localhost", "127.0.0.1", "::1"}
_JOBS = re.compile(r"/slurm/v0\.0\.(\d+)/jobs/?")


class _Trouble(Struct):
    error: Any = None
    description: Any = None


class _Answer(Struct):
    errors: list[_Trouble] | None = None


class _OpenApi(Struct):
    paths: dict[str, msgspec.Raw]


_answer_decoder = msgspec.json.Decoder(_Answer)
_openapi_decoder = msgspec.json.Decoder(_OpenApi)


class Rest:
    """One slurmrestd.

    Args:
        place: `unix:/path/of/socket`, where slurmrestd knows us by our user id, or `https://HOST:PORT`.
        token_file: holds a JSON Web Token as `scontrol token` prints it; read at every request, since tokens run out.
        transport: another httpx transport, for tests.

    Raises:
        ConfigError: the place is neither, or a token would cross a network in clear text.
    """

    def __init__(
        self, place: str, token_file: Path | None = None, *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self.place = place
        self._token_file = token_file
        socket = place.removeprefix("unix:")
        if socket != place:
            if not socket.startswith("/"):
                raise ConfigError(f"[slurm] rest {place!r}: write unix:/path/of/slurmrestd.sock, from the root")
            base = "http://localhost"
            transport = transport or httpx.AsyncHTTPTransport(uds=socket)
        else:
            base = _base_of(place, has_token=token_file is not None)
        # A proxy of the environment must not see the token of the cluster's own user.
        self._http = httpx.AsyncClient(base_url=base, timeout=LIMIT_S, transport=transport, trust_env=False)
        self._version = ""
        self._slash = ""

    async def jobs(self) -> bytes:
        """All jobs, as `squeue --json` prints them. Raises LinkError: slurmrestd or slurmctld gives none."""
        return await self._document("jobs")

    async def nodes(self) -> bytes:
        """All nodes, as `scontrol show nodes --json` prints them. Raises LinkError: as `jobs`."""
        return await self._document("nodes")

    async def close(self) -> None:
        """Let go of its connections."""
        await self._http.aclose()

    async def _document(self, what: str) -> bytes:
        if not self._version:
            await self._find_version()
        path = f"/slurm/{self._version}/{what}{self._slash}"
        answer = await self._get(path)
        if answer.status_code == httpx.codes.NOT_FOUND:
            self._version = ""  # another slurmrestd, perhaps: its versions are looked for at the next look
        _check(answer, path)
        return answer.content

    async def _find_version(self) -> None:
        """The newest form of the documents that it has; what stands in them is read in every version's form."""
        path = "/openapi/v3"
        answer = await self._get(path)
        _check(answer, path)
        try:
            paths = _openapi_decoder.decode(answer.content).paths
        except msgspec.MsgspecError as error:
            raise LinkError(f"slurmrestd's {path} is no description of an API: {error}") from error
        found = [(int(hit[1]), known) for known in paths if (hit := _JOBS.fullmatch(known)) is not None]
        if not found:
            raise LinkError("slurmrestd offers no list of jobs: is its plugin openapi/v0.0.38 (or a newer one) loaded?")
        number, path = max(found)
        self._version, self._slash = f"v0.0.{number}", "/" if path.endswith("/") else ""

    async def _get(self, path: str) -> httpx.Response:
        try:
            return await self._http.get(path, headers=self._headers())
        except httpx.HTTPError as error:
            raise LinkError(
                f"slurmrestd at {self.place} does not answer: {str(error) or type(error).__name__}"
            ) from error

    def _headers(self) -> dict[str, str]:
        if self._token_file is None:
            return {}
        try:
            mode = self._token_file.stat().st_mode
            words = read_bounded(self._token_file, SIZE_MAX).decode("ascii").split()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "is not ASCII text"
            raise LinkError(f"[slurm] rest_token_file {self._token_file} cannot be read: {why}") from error
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise LinkError(f"[slurm] rest_token_file {self._token_file} is open to others: chmod 600 it")
        token = words[-1].removeprefix("SLURM_JWT=") if words else ""
        if not token:
            raise LinkError(f"[slurm] rest_token_file {self._token_file} is empty: write what `scontrol token` prints")
        return {TOKEN_HEADER: token}


def _base_of(place: str, *, has_token: bool) -> str:
    try:
        parts = urlsplit(place)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"[slurm] rest: not an address: {error}") from error
    if parts.scheme not in {"http", "https"} or not host or parts.username is not None or parts.query:
        raise ConfigError("[slurm] rest: write unix:/path/of/slurmrestd.sock or https://HOST:PORT")
    if parts.scheme == "http" and has_token and host not in _LOCAL:
        raise ConfigError(
            f"[slurm] rest: the token would reach {host} in clear text: write https:// (a proxy before slurmrestd)"
        )
    return place.rstrip("/")


def _check(answer: httpx.Response, path: str) -> None:
    """Raises LinkError unless the answer is whole: slurmctld's troubles come as a list, with some versions as 200."""
    try:
        troubles = _answer_decoder.decode(answer.content).errors or []
    except msgspec.MsgspecError:
        troubles = []
        if answer.status_code == httpx.codes.OK:
            raise LinkError(f"slurmrestd's {path} is no JSON document") from None
    said = next((str(one.description or one.error) for one in troubles if one.description or one.error), "")
    if answer.status_code != httpx.codes.OK or said:
        raise LinkError(f"slurmrestd's {path}: {said[:200] or f'HTTP {answer.status_code}'}")
