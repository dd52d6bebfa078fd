"""What NVLink 5 events (Xid 144 to 150) ask for, by the two numbers in their line: intrInfo and errorStatus.

Called by `detect.xid`. The rows are facts of NVIDIA's Xid catalogue (October 2025): a row fits when intrInfo, written as
32 bits, agrees with its mask (`-`: any) and errorStatus is its own (None: any). Masks differ before and since driver
R575; the line does not name the driver, so the newer mask is tried first. Pure.
"""

from __future__ import annotations

from msgspec import Struct


class Nvlink5Event(Struct, frozen=True):
    """One row: `action` is NVIDIA's immediate action."""

    xid: int
    unit: str
    mask_since_r575: str
    mask_before_r575: str
    status: int | None
    action: str


def decoded_event(xid: int, intr: int, status: int) -> Nvlink5Event | None:
    """The row that fits, one with a status of its own before one for any; None when NVIDIA lists none."""
    bits = f"{intr & 0xFFFFFFFF:032b}"
    for newer in (True, False):
        fits = [
            event
            for event in EVENTS
            if event.xid == xid
            and event.status in {None, status}
            and _agrees(bits, event.mask_since_r575 if newer else event.mask_before_r575)
        ]
        if fits:
            return min(fits, key=lambda event: event.status is None)
    return None


def _agrees(bits: str, mask: str) -> bool:
    return len(mask) == len(bits) and all(m in {"-", b} for b, m in zip(bits, mask, strict=True))


EVENTS = (
    Nvlink5Event(144, "SAW_MVB", "------000000-------------0000001", "------000000----------0000100001", 0x1, "IGNORE"),
    Nvlink5Event(
        144, "SAW_MVB", "------000000-------------0000001", "------000000----------0000100001", 0x2, "RESET_GPU"
    ),
    Nvlink5Event(144, "SAW_MVB", "------000000-------------0000001", "------000000----------0000100001", 0x4, "IGNORE"),
    Nvlink5Event(144, "SAW_MVB", "------000000-------------0000001", "------000000----------0000100001", 0x8, "IGNORE"),
    Nvlink5Event(
        144, "SAW_MVB", "------000000-------------0000001", "------000000----------0000100001", 0x10, "RESET_GPU"
    ),
    Nvlink5Event(
        144, "SAW_MVB", "------000000-------------0000001", "------000000----------0000100001", 0x20, "IGNORE"
    ),
    Nvlink5Event(
        145, "RLW_CTRL", "------000000-------------0000011", "------000000----------0001100010", 0x80000000, "IGNORE"
    ),
    Nvlink5Event(
        145, "RLW_REMAP", "------000000-------------0000100", "------000000----------0010000010", 0x1, "XID_154_EVAL"
    ),
    Nvlink5Event(
        145, "RLW_REMAP", "------000000-------------0000100", "------000000----------0010000010", 0x2, "XID_154_EVAL"
    ),
    Nvlink5Event(
        145, "RLW_REMAP", "------000000-------------0000100", "------000000----------0010000010", 0x4, "XID_154_EVAL"
    ),
    Nvlink5Event(
        145, "RLW_REMAP", "------000000-------------0000100", "------000000----------0010000010", 0x8, "XID_154_EVAL"
    ),
    Nvlink5Event(
        145, "RLW_REMAP", "------000000-------------0000100", "------000000----------0010000010", 0x10, "XID_154_EVAL"
    ),
    Nvlink5Event(
        145, "RLW_REMAP", "------000000-------------0000100", "------000000----------0010000010", 0x20, "XID_154_EVAL"
    ),
    Nvlink5Event(
        145, "RLW_REMAP", "------000000-------------0000100", "------000000----------0010000010", 0x40, "RESET_GPU"
    ),
    Nvlink5Event(
        145, "RLW_REMAP", "------000000-------------0000100", "------000000----------0010000010", 0x80, "RESET_GPU"
    ),
    Nvlink5Event(
        145, "RLW_REMAP", "------000000-------------0000100", "------000000----------0010000010", 0x100, "IGNORE"
    ),
    Nvlink5Event(
        145, "RLW_REMAP", "------000000-------------0000100", "------000000----------0010000010", 0x200, "IGNORE"
    ),
    Nvlink5Event(
        145, "RLW_REMAP", "------000000-------------0000100", "------000000----------0010000010", 0x80000000, "IGNORE"
    ),
    Nvlink5Event(
        145, "RLW_RSPCOL", "------000000-------------0000101", "------000000----------0010100010", 0x1, "IGNORE"
    ),
    Nvlink5Event(
        145, "RLW_RSPCOL", "------000000-------------0000101", "------000000----------0010100010", 0x2, "RESET_GPU"
    ),
    Nvlink5Event(
        145, "RLW_RSPCOL", "------000000-------------0000101", "------000000----------0010100010", 0x80000000, "IGNORE"
    ),
    Nvlink5Event(
        145, "RLW_RXPIPE", "------000000------------00000110", "------000000---------00011000010", 0x1, "IGNORE"
    ),
    Nvlink5Event(
        145, "RLW_RXPIPE", "------000000------------00000110", "------000000---------00011000010", 0x2, "IGNORE"
    ),
    Nvlink5Event(
        145, "RLW_RXPIPE", "------000000------------00000110", "------000000---------00011000010", 0x4, "IGNORE"
    ),
    Nvlink5Event(
        145, "RLW_RXPIPE", "------000000-------------0000110", "------000000----------0011000010", 0x8, "IGNORE"
    ),
    Nvlink5Event(
        145, "RLW_RXPIPE", "------000000-------------0000110", "------000000----------0011000010", 0x80000000, "IGNORE"
    ),
    Nvlink5Event(
        145, "RLW_SRC_TRACK", "------000000-------------0000111", "------000000----------0011100010", 0x1, "RESET_GPU"
    ),
    Nvlink5Event(
        145, "RLW_SRC_TRACK", "------000000-------------0000111", "------000000----------0011100010", 0x2, "IGNORE"
    ),
    Nvlink5Event(
        145,
        "RLW_SRC_TRACK",
        "------000000-------------0000111",
        "------000000----------0011100010",
        0x4,
        "XID_154_EVAL",
    ),
    Nvlink5Event(
        145,
        "RLW_SRC_TRACK",
        "------000000-------------0000111",
        "------000000----------0011100010",
        0x8,
        "XID_154_EVAL",
    ),
    Nvlink5Event(
        145, "RLW_SRC_TRACK", "------000000-------------0000111", "------000000----------0011100010", 0x10, "RESET_GPU"
    ),
    Nvlink5Event(
        145, "RLW_SRC_TRACK", "------000000-------------0000111", "------000000----------0011100010", 0x20, "RESET_GPU"
    ),
    Nvlink5Event(
        145,
        "RLW_SRC_TRACK",
        "------000000-------------0000111",
        "------000000----------0011100010",
        0x80000000,
        "IGNORE",
    ),
    Nvlink5Event(
        145, "RLW_TAGSTATE", "------000000-------------0001000", "------000000----------0100000010", 0x1, "IGNORE"
    ),
    Nvlink5Event(
        145, "RLW_TAGSTATE", "------000000-------------0001000", "------000000----------0100000010", 0x2, "RESET_GPU"
    ),
    Nvlink5Event(
        145, "RLW_TAGSTATE", "------000000-------------0001000", "------000000----------0100000010", 0x10000, "IGNORE"
    ),
    Nvlink5Event(
        145,
        "RLW_TAGSTATE",
        "------000000-------------0001000",
        "------000000----------0100000010",
        0x20000,
        "RESET_GPU",
    ),
    Nvlink5Event(
        145,
        "RLW_TAGSTATE",
        "------000000-------------0001000",
        "------000000----------0100000010",
        0x100000,
        "RESET_GPU",
    ),
    Nvlink5Event(
        145,
        "RLW_TAGSTATE",
        "------000000-------------0001000",
        "------000000----------0100000010",
        0x80000000,
        "IGNORE",
    ),
    Nvlink5Event(
        146, "TLW_CTRL", "------000000-------------0001001", "------000000----------0100100011", 0x1, "IGNORE"
    ),
    Nvlink5Event(
        146, "TLW_CTRL", "------000000-------------0001001", "------000000----------0100100011", 0x2, "IGNORE"
    ),
    Nvlink5Event(
        146, "TLW_CTRL", "------000000-------------0001001", "------000000----------0100100011", 0x4, "RESET_GPU"
    ),
    Nvlink5Event(
        146, "TLW_CTRL", "------000000-------------0001001", "------000000----------0100100011", 0x80000000, "IGNORE"
    ),
    Nvlink5Event(
        146,
        "TLW_RX/TLW_RX_PIPE0",
        "------000000-------------0001010",
        "------000000----------0101000011",
        0x1,
        "IGNORE",
    ),
    Nvlink5Event(
        146,
        "TLW_RX/TLW_RX_PIPE0",
        "------000000-------------0001010",
        "------000000----------0101000011",
        0x2,
        "IGNORE",
    ),
    Nvlink5Event(
        146,
        "TLW_RX/TLW_RX_PIPE0",
        "------000000-------------0001010",
        "------000000----------0101000011",
        0x4,
        "RESET_GPU",
    ),
    Nvlink5Event(
        146,
        "TLW_RX/TLW_RX_PIPE0",
        "------000000-------------0001010",
        "------000000----------0101000011",
        0x80000000,
        "IGNORE",
    ),
    Nvlink5Event(
        146,
        "TLW_RX/TLW_RX_PIPE1",
        "------000000-------------0001011",
        "------000000----------0101000011",
        0x1,
        "IGNORE",
    ),
    Nvlink5Event(
        146,
        "TLW_RX/TLW_RX_PIPE1",
        "------000000-------------0001011",
        "------000000----------0101000011",
        0x2,
        "IGNORE",
    ),
    Nvlink5Event(
        146,
        "TLW_RX/TLW_RX_PIPE1",
        "------000000-------------0001011",
        "------000000----------0101000011",
        0x4,
        "RESET_GPU",
    ),
    Nvlink5Event(
        146,
        "TLW_RX/TLW_RX_PIPE1",
        "------000000-------------0001011",
        "------000000----------0101000011",
        0x80000000,
        "IGNORE",
    ),
    Nvlink5Event(
        146,
        "TLW_TX/TLW_TX_PIPE0",
        "------000000-------------0001100",
        "------000000----------0101100011",
        0x1,
        "IGNORE",
    ),
    Nvlink5Event(
        146,
        "TLW_TX/TLW_TX_PIPE0",
        "------000000-------------0001100",
        "------000000----------0101100011",
        0x2,
        "IGNORE",
    ),
    Nvlink5Event(
        146,
        "TLW_TX/TLW_TX_PIPE0",
        "------000000-------------0001100",
        "------000000----------0101100011",
        0x4,
        "RESET_GPU",
    ),
    Nvlink5Event(
        146,
        "TLW_TX/TLW_TX_PIPE0",
        "------000000-------------0001100",
        "------000000----------0101100011",
        0x80000000,
        "IGNORE",
    ),
    Nvlink5Event(
        146,
        "TLW_TX/TLW_TX_PIPE1",
        "------000000-------------0001101",
        "------000000----------0101100011",
        0x1,
        "IGNORE",
    ),
    Nvlink5Event(
        146,
        "TLW_TX/TLW_TX_PIPE1",
        "------000000-------------0001101",
        "------000000----------0101100011",
        0x2,
        "IGNORE",
    ),
    Nvlink5Event(
        146,
        "TLW_TX/TLW_TX_PIPE1",
        "------000000-------------0001101",
        "------000000----------0101100011",
        0x4,
        "RESET_GPU",
    ),
    Nvlink5Event(
        146,
        "TLW_TX/TLW_TX_PIPE1",
        "------000000-------------0001101",
        "------000000----------0101100011",
        0x80000000,
        "IGNORE",
    ),
    Nvlink5Event(147, "TREX", "------000000-------------0001110", "------000000----------0110000100", 0x1, "IGNORE"),
    Nvlink5Event(
        147, "TREX", "------000000-------------0001110", "------000000----------0110000100", 0x80000000, "IGNORE"
    ),
    Nvlink5Event(
        148,
        "NVLPW_CTRL/NVLPW",
        "------000000-------------0001111",
        "------000000----------0000000101",
        0x80000000,
        "IGNORE",
    ),
    Nvlink5Event(
        149,
        "NETIR/NETIR_INT",
        "------000000-------------0011000",
        "------000000----------0000000110",
        None,
        "RESET_GPU",
    ),
    Nvlink5Event(
        149,
        "NETIR_LINK_EVT/NETIR_LINK_DOWN",
        "------000000-------------0010001",
        "------000000----------0111000110",
        None,
        "RESET_GPU",
    ),
    Nvlink5Event(
        149,
        "NETIR_LINK_EVT/NETIR_LINK_DOWN",
        "------000001-------------0010001",
        "------000001----------0111000110",
        None,
        "RESET_GPU",
    ),
    Nvlink5Event(
        149,
        "NETIR_LINK_EVT/NETIR_LINK_DOWN",
        "------000010-------------0010001",
        "------000010----------0111000110",
        None,
        "RESET_GPU",
    ),
    Nvlink5Event(
        149,
        "NETIR_LINK_EVT/NETIR_LINK_DOWN",
        "------000100-------------0010001",
        "------000100----------0111000110",
        None,
        "RESET_GPU",
    ),
    Nvlink5Event(
        149,
        "NETIR_LINK_EVT/NETIR_LINK_DOWN",
        "------001010-------------0010001",
        "------001010----------0111000110",
        None,
        "RESET_GPU",
    ),
    Nvlink5Event(
        149,
        "NETIR_LINK_EVT/NETIR_LINK_DOWN",
        "------001111-------------0010001",
        "------001111----------0111000110",
        None,
        "RESET_GPU",
    ),
    Nvlink5Event(
        149,
        "NETIR_LINK_EVT/NETIR_LINK_DOWN",
        "------010000-------------0010001",
        "------010000----------0111000110",
        None,
        "RESET_GPU",
    ),
    Nvlink5Event(
        149,
        "NETIR_LINK_EVT/NETIR_LINK_DOWN",
        "------010001-------------0010001",
        "------010001----------0111000110",
        None,
        "RESET_GPU",
    ),
    Nvlink5Event(
        149,
        "NETIR_LINK_EVT/NETIR_LINK_DOWN",
        "------010010-------------0010001",
        "------010010----------0111000110",
        None,
        "RESET_GPU",
    ),
    Nvlink5Event(
        149,
        "NETIR_LINK_EVT/NETIR_LINK_DOWN",
        "------010101-------------0010001",
        "------010101----------0111000110",
        None,
        "RESET_GPU",
    ),
    Nvlink5Event(
        149,
        "NETIR_LINK_EVT/NETIR_LINK_DOWN",
        "------010110-------------0010001",
        "------010110----------0111000110",
        None,
        "RESET_GPU",
    ),
    Nvlink5Event(
        149,
        "NETIR_LINK_EVT/NETIR_LINK_DOWN",
        "------100000-------------0010001",
        "------100000----------0111000110",
        None,
        "RESET_GPU",
    ),
    Nvlink5Event(
        149,
        "NETIR_LINK_EVT/NETIR_LINK_DOWN",
        "------100001-------------0010001",
        "------100001----------0111000110",
        None,
        "RESET_GPU",
    ),
    Nvlink5Event(
        149,
        "NETIR_LINK_EVT/NETIR_LINK_DOWN",
        "------100010-------------0010001",
        "------100010----------0111000110",
        None,
        "RESET_GPU",
    ),
    Nvlink5Event(
        149,
        "NETIR_LINK_EVT/NETIR_LINK_DOWN",
        "------100011-------------0010001",
        "------100011----------0111000110",
        None,
        "RESET_GPU",
    ),
    Nvlink5Event(
        149,
        "NETIR_LINK_EVT/NETIR_LINK_DOWN",
        "------100100-------------0010001",
        "------100100----------0111000110",
        None,
        "RESET_GPU",
    ),
    Nvlink5Event(
        149,
        "NETIR_LINK_EVT/NETIR_LINK_DOWN",
        "------100101-------------0010001",
        "------100101----------0111000110",
        None,
        "RESET_GPU",
    ),
    Nvlink5Event(
        149,
        "NETIR_LINK_EVT/NETIR_LINK_DOWN",
        "------100110-------------0010001",
        "------100110----------0111000110",
        None,
        "IGNORE",
    ),
    Nvlink5Event(
        149,
        "NETIR_LINK_EVT/NETIR_LINK_DOWN",
        "------101000-------------0010001",
        "------101000----------0111000110",
        None,
        "IGNORE",
    ),
    Nvlink5Event(
        149,
        "NETIR_LINK_EVT/NETIR_LINK_DOWN",
        "------101010-------------0010001",
        "------101010----------0111000110",
        None,
        "RESET_GPU",
    ),
    Nvlink5Event(
        149,
        "NETIR_LINK_EVT/NETIR_LINK_DOWN",
        "------101011-------------0010001",
        "------101011----------0111000110",
        None,
        "RESET_GPU",
    ),
    Nvlink5Event(
        149, "NETIR_BER_EVENT", "------000000-------------0010011", "------000000----------1000100110", 0x0, "IGNORE"
    ),
    Nvlink5Event(
        149, "NETIR_BER_EVENT", "------000000-------------0010011", "------000000----------1000100110", 0x1, "IGNORE"
    ),
    Nvlink5Event(
        149, "NETIR_BER_EVENT", "------000000-------------0010011", "------000000----------1000100110", 0x2, "IGNORE"
    ),
    Nvlink5Event(
        149, "NETIR_BER_EVENT", "------000000-------------0010011", "------000000----------1000100110", 0x3, "IGNORE"
    ),
    Nvlink5Event(
        149,
        "NETIR_MFDE_EVENT",
        "------000000-------------0010100",
        "------000000----------1001000110",
        0x1,
        "RESET_GPU",
    ),
    Nvlink5Event(
        149, "NETIR_MFDE_EVENT", "------000000-------------0010100", "------000000----------1001000110", 0x3, "IGNORE"
    ),
    Nvlink5Event(
        149,
        "NETIR_MFDE_EVENT",
        "------000000-------------0010100",
        "------000000----------1001000110",
        0x4,
        "RESET_GPU",
    ),
    Nvlink5Event(
        149,
        "NETIR_MFDE_EVENT",
        "------000000-------------0010100",
        "------000000----------1001000110",
        0x5,
        "RESET_GPU",
    ),
    Nvlink5Event(
        149,
        "NETIR_MFDE_EVENT",
        "------000000-------------0010100",
        "------000000----------1001000110",
        0x7,
        "RESET_GPU",
    ),
    Nvlink5Event(
        150, "MSE Degraded", "------000000-------------0000000", "------000000----------0000000000", 0x0, "RESET_GPU"
    ),
    Nvlink5Event(
        150,
        "MSE Degraded",
        "------000000-------------0000000",
        "------000000----------0000000000",
        0xFFFFFFFF,
        "RESET_GPU",
    ),
    Nvlink5Event(
        150, "MSE_WATCHDOG", "------000000-------------0000000", "------000000----------0000000000", 0x0, "RESET_GPU"
    ),
)
"""NVIDIA's decoding table."""
