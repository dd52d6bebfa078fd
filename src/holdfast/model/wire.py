"""The wire format: how events, orders and records are written as bytes, in the journal and between processes.

JSON, by msgspec. Fields that a newer version added are ignored; a field of the wrong type is named in a `WireError`;
an event or order of a kind that this version does not know is a `VersionError`. Called by adapters, client and API.
Bytes are stable: equal values give equal bytes. No time passes here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct

from holdfast.errors import VersionError, WireError
from holdfast.model.events import AnyEvent
from holdfast.model.orders import AnyOrder

WIRE_VERSION = 1
"""Grows only when an older reader could not make sense of what is written."""

T = TypeVar("T")

_encoder = msgspec.json.Encoder()
_event_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)
_orders_decoder: msgspec.json.Decoder[list[AnyOrder]] = msgspec.json.Decoder(list[AnyOrder])
_decoders: dict[object, msgspec.json.Decoder[object]] = {}


class Batch(Struct, frozen=True, kw_only=True):
    """What a source sends to `POST /v1/ingest`."""

    version: int = WIRE_VERSION
    source: str
    events: list[msgspec.Raw] = []


class SamplePoint(Struct, frozen=True, array_like=True):
    """One sample of a beat, `[series, subject, at, value]`; a value of null is NaN."""

    series: str
    subject: str
    at: float
    value: float | None


SOURCE_HEADER = "Holdfast-Source"
"""On the controller's Unix socket: what the request reports as, for a user who is let in as that source."""
ADDRESS_SIZE_MAX = 1 << 16
"""Bytes of a `controller.json`, at most."""


class ControllerAddress(Struct, frozen=True):
    """What others read of `controller.json`: where a controller listens. `pid` tells two on the same port apart."""

    url: str
    pid: int = 0


class Beat(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What agents and launchers send to `POST /v1/beat`: alive, and samples. Not journalled."""

    version: int = WIRE_VERSION
    source: str
    """`agent:node07` or `launcher:1778`."""
    node: str = ""
    cluster: str = ""
    job: str = ""
    generation: int = 1
    boot_id: str = ""
    instance_id: str = ""
    drill_ok: bool = False
    at: float = 0.0
    """The sender's clock, for estimating its offset; 0.0: not given."""
    samples: list[SamplePoint] = []


class BeatAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the controller answers to a beat."""

    lease_s: float
    """Be heard again within this time."""
    requests: list[AnyOrder] = []
    """Orders for this source. Each is handed out again until its outcome has arrived; do each id once."""
    attached: bool = True
    """False: the controller does not know this launcher; it must send `LauncherAttached` again."""


class IngestAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the controller answers to a batch, after its commit."""

    seq: int
    """Sequence number up to which everything is stored."""
    stored: int = 0
    """Events of the batch that are on disk now; those that were there already are counted, too."""
    refused: list[str] = []
    """Why events of the batch were refused for good; sending them again will not help."""


def encode(value: object) -> bytes:
    """Canonical bytes of any model value.

    Raises:
        WireError: the value holds text that is not Unicode (lone surrogates) or a type that has no form here.
    """
    try:
        return _encoder.encode(value)
    except (UnicodeEncodeError, TypeError, ValueError) as error:
        raise WireError(f"cannot write {type(value).__name__} as JSON: {error}") from error


def decode(data: bytes | bytearray | memoryview | str | msgspec.Raw, kind: type[T]) -> T:
    """Read a value of the given type.

    Raises:
        WireError: names the field and what was expected there.
    """
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        return decoder.decode(data)  # type: ignore[return-value]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not a {getattr(kind, '__name__', kind)}: {error}") from error


def decode_event(data: bytes | str | msgspec.Raw) -> AnyEvent:
    """Read one event.

    Raises:
        VersionError: an event of a kind that this version does not know.
        WireError: names the field and what was expected there.
    """
    try:
        return _event_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if "Invalid value" in str(error) and "$.event" in str(error):
            raise VersionError(f"this version does not know this kind of event: {error}") from error
        raise WireError(f"not an event: {error}") from error


def decode_orders(data: bytes | str) -> list[AnyOrder]:
    """Read a list of orders.

    Raises:
        WireError: names the field and what was expected there.
    """
    try:
        return _orders_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not a list of orders: {error}") from error


def check_version(version: int) -> None:
    """Raise VersionError when the other side writes a form that this version cannot read."""
    if version > WIRE_VERSION:
        raise VersionError(f"wire version {version} is newer than {WIRE_VERSION}: update holdfast on this side")


def kind_of(value: Struct) -> str:
    """The tag by which an event or order is known on the wire, such as `finding_seen`."""
    return str(value.__struct_config__.tag)


def job_of(event: AnyEvent) -> str:
    """The job that an event is about, as written in `str(JobKey)`; empty: none."""
    job = getattr(event, "job", None)
    if job is None:
        finding = getattr(event, "finding", None)
        job = finding.job if finding is not None else None
    key = getattr(job, "key", job)
    return str(key) if key is not None else ""


def node_of(event: AnyEvent) -> str:
    """The node that an event is about; empty: none."""
    node = getattr(event, "node", None)
    if node is None:
        finding = getattr(event, "finding", None)
        return finding.place.node if finding is not None else ""
    return str(getattr(node, "name", node))


def names(values: Sequence[Struct]) -> list[str]:
    """Kinds of several events or orders, for messages and tests."""
    return [kind_of(value) for value in values]
