"""NVLink 5 events are decoded by NVIDIA's table: the same unit can be harmless or ask for a reset."""

import pytest

from holdfast.detect.catalogue import StreamKind
from holdfast.detect.matcher import StreamSource
from holdfast.detect.nvlink5 import EVENTS, decoded_event
from whole_logs import MATCHER


def test_masks():
    """Every row's own numbers find a row with its action or a more exact one; unknown numbers find none."""
    for event in EVENTS:
        intr = int(event.mask_since_r575.replace("-", "0"), 2)
        assert decoded_event(event.xid, intr, event.status or 0) is not None, event
    assert decoded_event(144, 0xFFFFFFFF, 1) is None
    assert decoded_event(149, 0x025525C6, 0) is None or decoded_event(149, 0x025525C6, 0).xid == 149


@pytest.mark.parametrize(
    ("status", "role", "remedy"), [("0x00000001", "context", "none"), ("0x00000002", "root", "reset_gpu")]
)
def test_status_decides(status, role, remedy):
    """Xid 144 of the MVB unit: status 1 is to be ignored, status 2 asks for a reset."""
    line = f"NVRM: Xid (PCI:0018:01:00): 144, SAW_MVB Nonfatal XC0 i0 Link 09 (0x00000001 {status} 0x0 0x0 0x0 0x0)\n"
    match = MATCHER.stream(StreamSource(kind=StreamKind.KERNEL)).feed(line.encode(), 0.0)[0]
    assert (match.rule.id, match.rule.role, match.rule.remedy) == ("nvidia.xid.144", role, remedy)
