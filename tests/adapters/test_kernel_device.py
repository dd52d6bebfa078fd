"""`/dev/kmsg`: records taken apart, read one by one, gaps counted."""

import asyncio
import errno
import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.adapters.clock import SystemClock
from holdfast.adapters.kernel_device import KernelDevice
from holdfast.adapters.kernel_record import Record, parse_record
from holdfast.errors import LinkError


def test_a_record_is_taken_apart() -> None:
    """Sequence number, seconds since boot, text; continuation lines (SUBSYSTEM=...) are left out."""
    raw = b"4,1234,5678901,-;NVRM: Xid (PCI:0000:b9:00): 79, x; y\n SUBSYSTEM=pci\n DEVICE=+pci:0000:b9:00.0\n"
    assert parse_record(raw) == Record(1234, 5.678901, b"NVRM: Xid (PCI:0000:b9:00): 79, x; y")
    assert parse_record(b"6,7,8,c,caller=T1;hello\n") == Record(7, 8e-6, b"hello")


@pytest.mark.parametrize("raw", [b"", b"hello", b"6,7;x", b"a,b,c,d;x", b";"])
def test_what_is_no_record_is_left_out(raw: bytes) -> None:
    """Bytes of another form give None."""
    assert parse_record(raw) is None


@given(st.binary(max_size=200))
def test_any_bytes_are_survived(raw: bytes) -> None:
    """Nothing that the kernel could write raises."""
    parse_record(raw)


def follow(packets: list[bytes], *, after: int = -1, errors: dict[int, int] | None = None) -> tuple[list, KernelDevice]:
    """Run a device over a socket that keeps packets apart, as the real one keeps records apart."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.setblocking(False)
    found: list[tuple[Record, float]] = []

    async def body() -> KernelDevice:
        device = KernelDevice(
            lambda record, at: found.append((record, at)),
            SystemClock(),
            after=after,
            open_device=lambda _path: os.dup(theirs.fileno()),
        )
        device.start()
        for packet in packets:
            ours.send(packet)
        deadline = asyncio.get_running_loop().time() + 5
        while not found or found[-1][0].text != b"last":
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.001)
        device.close()
        device.close()
        return device

    try:
        return found, asyncio.run(body())
    finally:
        ours.close()
        theirs.close()


def test_records_come_in_order_and_known_ones_are_skipped() -> None:
    """After sequence number 5, records 4 and 5 are old; each has the time at which the kernel wrote it."""
    clock = SystemClock()
    packets = [b"6,%d,%d,-;r%d" % (n, int((clock.monotonic() - 60) * 1e6), n) for n in (4, 5, 6)]
    found, _ = follow([*packets, b"6,7,1,-;last"], after=5)
    assert [record.text for record, _ in found] == [b"r6", b"last"]
    assert clock.now() - found[0][1] == pytest.approx(60, abs=2)


def test_a_gap_is_counted_and_reading_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """EPIPE means that the ring was overwritten: the next records are read all the same."""
    read, failed = os.read, []

    def overwritten_once(fd: int, size: int) -> bytes:
        if not failed:
            failed.append(True)
            raise OSError(errno.EPIPE, "Broken pipe")
        return read(fd, size)

    monkeypatch.setattr("holdfast.adapters.kernel_device.os.read", overwritten_once)
    found, device = follow([b"6,1,1,-;last"])
    assert (len(found), device.gaps) == (1, 1)


def test_a_missing_device_is_said(tmp_path: Path) -> None:
    """The device's path and the system's reason, as a LinkError."""

    async def body() -> None:
        with pytest.raises(LinkError, match=r"kmsg cannot be read: No such file"):
            KernelDevice(lambda _record, _at: None, SystemClock(), tmp_path / "kmsg").start()

    asyncio.run(body())


def test_a_device_that_cannot_be_followed_is_one_sentence() -> None:
    """`holdfast agent --kernel-log /dev/null`: nothing tells when such a device has news, and no descriptor is left."""

    async def work() -> None:
        device = KernelDevice(lambda _record, _at: None, SystemClock(), Path(os.devnull))
        with pytest.raises(LinkError, match="/dev/null is not a kernel log"):
            device.start()
        assert device._fd < 0
        device.close()

    asyncio.run(work())
