"""NVIDIA's Xid and SXid codes: which rule a kernel line is, what its text adds.

Called by the matcher for lines that the general Xid rule matched. Sources of the codes and of the decoding are
NVIDIA's Xid catalogue (October 2025) and the Fabric Manager guide; see `catalogue/nvidia_xid.toml`. Pure.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.detect.nvlink5 import decoded_event
from holdfast.model.evidence import Domain, Remedy, Role, Severity

if TYPE_CHECKING:
    from holdfast.detect.catalogue import Catalogue, Rule

_VERDICT = re.compile(r"changed from (0x[0-9a-fA-F]+) \(([^)]*)\) to (?P<code>0x[0-9a-fA-F]+) \((?P<verdict>[^)]*)\)")
_LINK = re.compile(r"link (?P<link>\d+)\((?P<regs>[^)]*)\)")
_NVL5 = re.compile(
    r"(?P<sub>[A-Z][\w/ ]*?)\s+(?P<sev>Nonfatal|Fatal)\s+(?P<xc>XC\d)\s+i\d+\s+Link\s+(?P<link>-?\d+)\s+"
    r"\((?P<intr>0x[0-9a-fA-F]+)\s+(?P<err>0x[0-9a-fA-F]+)"
)
_ADDRESS = re.compile(r"^(?:(?P<domain>[0-9a-f]{4,8}):)?(?P<bus>[0-9a-f]{2}):(?P<device>[0-9a-f]{2})(?:\.[0-9a-f])?$")
_BEFORE = re.compile(r"caused by previous Xid (?P<xid>\d{1,4})")
_VERDICTS: dict[int, tuple[Role, Severity, Remedy]] = {
    0: (Role.BENIGN, Severity.INFO, Remedy.NONE),
    1: (Role.ROOT, Severity.FATAL, Remedy.RESET_GPU),
    2: (Role.ROOT, Severity.FATAL, Remedy.REBOOT),
    3: (Role.ROOT, Severity.ERROR, Remedy.RESET_GPU),
    4: (Role.ROOT, Severity.FATAL, Remedy.RESET_GPU),
}
"""Xid 154 by NVML_GPU_RECOVERY_ACTION: NONE, GPU_RESET, NODE_REBOOT, DRAIN_P2P, DRAIN_AND_RESET."""
NVLINK5 = range(144, 151)
_OF_A_CODE = re.compile(r"nvidia\.s?xid\.\d{1,9}", re.ASCII)


def is_of_a_code(rule: str) -> bool:
    """Could a line's code have made this rule id? Codes that the catalogue does not know make one, too."""
    return _OF_A_CODE.fullmatch(rule) is not None


def decoded(catalogue: Catalogue, rule: Rule, captures: dict[str, str]) -> Rule:
    """The rule of the code that was captured; `captures` gains what the text says (link, verdict, gpu_id)."""
    if "gpu_id" in captures:
        captures["gpu_id"] = pci_address(captures["gpu_id"]) or captures["gpu_id"]
    code = captures.get("xid", "")
    if rule.decode == "sxid":
        return _sxid(catalogue, rule, captures, code)
    found = catalogue.find(f"nvidia.xid.{code}") or replace(
        rule, id=f"nvidia.xid.{code}", title=f"Xid {code}, which the catalogue does not know", remedy=Remedy.REBOOT
    )
    rest = captures.get("rest", "")
    if code == "154" and (verdict := _VERDICT.search(rest)):
        captures["verdict"] = verdict["verdict"]
        role, severity, remedy = _VERDICTS.get(int(verdict["code"], 16), (Role.ROOT, Severity.ERROR, Remedy.REBOOT))
        return replace(
            found,
            role=role,
            severity=severity,
            remedy=remedy,
            title=f"Xid 154: the driver asks for: {verdict['verdict']}",
        )
    if code == "45" and (before := _BEFORE.search(rest)) is not None:
        return _told_by_45(catalogue, found, before["xid"])
    if code == "74" and (link := _LINK.search(rest)):
        captures |= {"link": link["link"], "regs": link["regs"]}
    elif code.isdigit() and int(code) in NVLINK5 and (event := _NVL5.search(rest)):
        captures |= {"sub": event["sub"].strip(), "sev": event["sev"], "intr": event["intr"], "err": event["err"]}
        if event["link"] != "-1":
            captures["link"] = event["link"].lstrip("0") or "0"
        return _nvlink5(found, captures)
    return found


def _told_by_45(catalogue: Catalogue, rule: Rule, code: str) -> Rule:
    """Xid 45 says which Xid took its channel down: where that one's own line is missing, it stands for it."""
    before = catalogue.find(f"nvidia.xid.{code}")
    if before is None or not (before.role is Role.ROOT or int(code) in NVLINK5):
        return rule
    remedy = before.remedy if before.remedy is not Remedy.NONE else Remedy.RESET_GPU
    title = f"{before.title} (Xid {code}, by the Xid 45 that followed it)"
    return replace(before, role=Role.ROOT, severity=Severity.ERROR, remedy=remedy, title=title)


def _nvlink5(rule: Rule, captures: dict[str, str]) -> Rule:
    title = f"{rule.title}: {captures['sub']}, {captures['sev'].lower()}"
    event = decoded_event(int(captures["xid"]), int(captures["intr"], 16), int(captures["err"], 16))
    # NVIDIA's table decides; an event that it does not list, or leaves to Xid 154, is judged by the line's own word.
    grave = captures["sev"] == "Fatal"
    if event is not None and event.action in {"RESET_GPU", "IGNORE"}:
        grave = event.action == "RESET_GPU"
        captures["what"] = f"{event.unit}: {event.action}"
    if grave:
        return replace(rule, role=Role.ROOT, severity=Severity.FATAL, remedy=Remedy.RESET_GPU, title=title)
    return replace(rule, role=Role.CONTEXT, severity=Severity.WARNING, remedy=Remedy.NONE, title=title)


def _sxid(catalogue: Catalogue, rule: Rule, captures: dict[str, str], code: str) -> Rule:
    found = catalogue.find(f"nvidia.sxid.{code}") or replace(
        rule, id=f"nvidia.sxid.{code}", title=f"SXid {code} of an NVSwitch"
    )
    if captures.get("sev") == "Fatal":
        return replace(found, role=Role.ROOT, severity=Severity.FATAL, domain=Domain.HARDWARE)
    if captures.get("sev") == "Non-fatal" and found.role is Role.ROOT:
        return replace(found, role=Role.CONTEXT, severity=Severity.WARNING, remedy=Remedy.NONE)
    return found


def pci_address(text: str) -> str:
    """A PCI address in one form, `domain:bus:device` with four digits of domain; empty when it is none.

    Xid lines give it with or without domain, function and upper case; tools write the domain with four or eight digits.
    """
    found = _ADDRESS.match(text.strip().lower().rstrip("."))
    return f"{int(found['domain'] or '0', 16):04x}:{found['bus']}:{found['device']}" if found is not None else ""
