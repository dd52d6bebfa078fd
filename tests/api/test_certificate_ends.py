"""A certificate near its end is told: by a notice at 30 and 7 days, in /metrics, and by `holdfast doctor`."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.adapters.journal_cases import run
from tests.certificates import DAY, Authority

from holdfast.adapters.clock import SystemClock
from holdfast.adapters.memory import MemoryNotifier
from holdfast.cli.certificates import certificates
from holdfast.cli.machine import State
from holdfast.model.evidence import Severity
from holdfast.os.tls import authority_end
from holdfast.wiring.certificate_watch import CertificateWatch


def told(watch: CertificateWatch, notifier: MemoryNotifier) -> list[tuple[str, Severity]]:
    """What this look tells."""
    notifier.sent.clear()
    run(watch.look)
    return [(one.title, one.severity) for one in notifier.sent]


def test_each_certificate_is_told_of_at_30_days_and_at_7_and_once_each(tmp_path: Path) -> None:
    """A restart tells nothing again; a renewed certificate ends it, and has its own end told."""
    ours, notifier = Authority(tmp_path), MemoryNotifier()
    soon = "The controller's certificate ends in"
    for days, expected in (
        (90, []),
        (20, [(f"{soon} 19 days", Severity.WARNING)]),
        (5, [(f"{soon} 4 days", Severity.ERROR)]),
        (90, []),
        (1, [(f"{soon} 0 days", Severity.ERROR)]),
    ):
        files = ours.files(ours.server(days=days))
        for again in (expected, []):
            watch = CertificateWatch(files, [notifier], tmp_path, SystemClock())
            assert told(watch, notifier) == again
            (family,) = watch.collect()
            assert family.samples[0].value == pytest.approx(time.time() + days * DAY, abs=2 * 3600)


def test_an_end_that_comes_while_it_runs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was good at the start is told of as its days run out, and once it has expired."""
    ours, notifier, clock = Authority(tmp_path), MemoryNotifier(), SystemClock()
    watch = CertificateWatch(ours.files(ours.server(days=40)), [notifier], tmp_path, clock)
    begun = time.time()
    for gone, count in ((0, 0), (11, 1), (20, 0), (34, 1), (41, 0)):
        monkeypatch.setattr(clock, "now", lambda gone=gone: begun + gone * DAY)
        assert len(told(watch, notifier)) == count


def test_without_tls_nothing_is_told(tmp_path: Path) -> None:
    """Neither a notice nor a figure."""
    notifier = MemoryNotifier()
    watch = CertificateWatch(None, [notifier], tmp_path, SystemClock())
    assert told(watch, notifier) == []
    assert list(watch.collect()) == []


def test_a_notice_that_could_not_be_sent_is_sent_at_the_next_look(tmp_path: Path) -> None:
    """What is marked as told was told."""
    ours, notifier = Authority(tmp_path), MemoryNotifier()
    watch = CertificateWatch(ours.files(ours.server(days=5)), [notifier], tmp_path / "gone", SystemClock())
    assert len(told(watch, notifier)) == 1
    (tmp_path / "gone").mkdir()
    assert [len(told(watch, notifier)) for _ in range(2)] == [1, 0]


def test_doctor_names_the_certificates_and_their_days(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller's, this client's and the authority, each with its file; one that is over is broken."""
    ours = Authority(tmp_path)
    ours.files(ours.server(days=20))
    mine = ours.client("me").cert_file
    site = tmp_path / "site.toml"
    site.write_text('ca_file = "ours/ca.pem"\n[tls]\ncert = "ours/tls.crt"\nkey = "ours/tls.key"\n')
    monkeypatch.setenv("HOLDFAST_CONFIG", str(site))
    monkeypatch.setenv("HOLDFAST_CERT_FILE", str(mine))
    found = {one.name: one for one in certificates()}
    assert [found[name].state for name in ("certificate", "client certificate", "authority")] == [
        State.MISSING,
        State.OK,
        State.OK,
    ]
    assert found["certificate"].found == f"{tmp_path}/ours/tls.crt, 19 days left"
    assert found["certificate"].advice == f"renew {tmp_path}/ours/tls.crt soon"
    assert str(mine) in found["client certificate"].found
    later = {one.name: one.state for one in certificates(authority_end(ours.ca) + DAY)}
    assert set(later.values()) == {State.BROKEN}
    ours.files(ours.server(at=time.time() - 100 * DAY, days=20))
    assert "has expired" in {one.name: one for one in certificates()}["certificate"].found
    monkeypatch.setenv("HOLDFAST_CONFIG", str(tmp_path / "none.toml"))
    assert certificates() == []
