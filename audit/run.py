"""`make audit`: what users install, under which licences, and what is known against it.

Every extra is included. It fits together (`pip check`), the sources pass ruff's rules, the bill of materials is written
(CycloneDX) and lists the licences, and no component has a known vulnerability. For the last one advisories are given in
the OSV format, as JSON files in a folder or in a zip archive (OSV exports all of PyPI as `all.zip`). Nothing is
fetched. Without advisories the audit fails, because nobody has looked.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).resolve().parents[1]
BUILT = ROOT / "build/audit"
"""Made by the Makefile: `shipped` is an environment with what users install, `maker` one with the maker of the bill."""
BILL = BUILT / "sbom.cdx.json"


class Unusable(Exception):  # noqa: N818 - a sentence for whoever called
    """The advisories cannot be read."""


def advisories(path: Path) -> Iterator[dict[str, Any]]:
    """Read each advisory of a folder of JSON files, or of a zip archive of them.

    Raises:
        Unusable: the path is neither, holds no advisory, or one of its files is not JSON.
    """
    if path.is_dir():
        files = ((file.name, file.read_bytes()) for file in sorted(path.glob("*.json")))
    elif zipfile.is_zipfile(path):
        archive = zipfile.ZipFile(path)
        files = ((name, archive.read(name)) for name in archive.namelist() if name.endswith(".json"))
    else:
        raise Unusable(f"{path} is neither a folder nor a zip archive of advisories in the OSV format")
    count = 0
    for name, data in files:
        try:
            read = json.loads(data)
        except ValueError as error:
            raise Unusable(f"{path}: {name} is not JSON ({error})") from None
        if isinstance(read, dict) and "affected" in read:
            count += 1
            yield read
    if not count:
        raise Unusable(f"{path} holds no advisory in the OSV format")


def affects(affected: dict[str, Any], version: str) -> bool:
    """Does one `affected` entry of an advisory name this version?

    By the rules of the OSV schema: a version is affected when it is listed, or when it lies in a range: at or after
    `introduced` ("0": from the first), before `fixed`, at or before `last_affected`. Only ranges of versions count;
    those of commits say nothing about a release.
    """
    if version in affected.get("versions", ()):
        return True
    try:
        own = Version(version)
    except InvalidVersion:
        return False
    return any(_inside(own, span["events"]) for span in affected.get("ranges", ()) if span.get("type") == "ECOSYSTEM")


def _inside(own: Version, events: list[dict[str, str]]) -> bool:
    inside = False
    for what, bound in sorted(((what, bound) for event in events for what, bound in event.items()), key=_place):
        reached = bound == "0" or own > Version(bound) or (own == Version(bound) and what != "last_affected")
        if reached:
            inside = what == "introduced"
    return inside


def _place(event: tuple[str, str]) -> tuple[Version, bool]:
    what, bound = event
    return Version(bound), what != "introduced"


def known_against(components: list[tuple[str, str]], path: Path) -> list[str]:
    """List what the advisories say of these names and versions, a line each; withdrawn ones say nothing."""
    versions = {canonicalize_name(name): version for name, version in components}
    found = []
    for advisory in advisories(path):
        if advisory.get("withdrawn"):
            continue
        for affected in advisory["affected"]:
            package = affected.get("package", {})
            name = canonicalize_name(package.get("name", ""))
            if package.get("ecosystem") == "PyPI" and name in versions and affects(affected, versions[name]):
                others = ", ".join(advisory.get("aliases", ())[:3])
                summary = " ".join(advisory.get("summary", "").split())
                found.append(f"{name} {versions[name]}: {advisory['id']}{f' ({others})' if others else ''} {summary}")
    return sorted(set(found))


def licence_of(component: dict[str, Any]) -> str:
    """The licences that a component of the bill of materials names; empty when it names none."""
    named = [entry.get("expression") or _name(entry.get("license", {})) for entry in component.get("licenses", ())]
    return ", ".join(sorted({name for name in named if name}))


def _name(entry: dict[str, Any]) -> str:
    text = str(entry.get("id") or entry.get("name") or "")
    return (
        "" if text.startswith("declared license") else text.removeprefix("License :: ").replace("OSI Approved :: ", "")
    )


def bill(python: str) -> list[dict[str, Any]]:
    """Write the bill of materials of an environment and return its components."""
    words = [str(BUILT / "maker/bin/cyclonedx-py"), "environment", "--output-reproducible", "-o", str(BILL), python]
    subprocess.run(words, check=True, stderr=subprocess.DEVNULL)
    return list(json.loads(BILL.read_text(encoding="utf-8"))["components"])


def looked(what: str, words: list[str]) -> bool:
    """Run one look and tell how it went."""
    done = subprocess.run(words, check=False, capture_output=True, text=True, cwd=ROOT)
    print(f"{what:16} {'well' if done.returncode == 0 else 'FAILED'}")
    if done.returncode:
        print(done.stdout + done.stderr)
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--advisories", type=Path, help="a folder or a zip archive of advisories in the OSV format")
    given = parser.parse_args()
    shipped = str(BUILT / "shipped/bin/python")
    ruff = str(Path(sys.executable).with_name("ruff"))
    well = looked("fits together", [shipped, "-m", "pip", "check"])
    well &= looked("security rules", [ruff, "check", "src", "deploy"])
    components = [one for one in bill(shipped) if one["name"] != "holdfast"]
    print(f"{'components':16} {len(components)}, the bill is {BILL.relative_to(ROOT)}")
    licences = Counter(licence_of(one) or "none named" for one in components)
    for licence, count in licences.most_common():
        print(f"{'licence':16} {count:4} {licence[:90]}")
    unnamed = [one["name"] for one in components if not licence_of(one)]
    if unnamed:
        print(f"{'no licence':16} {', '.join(unnamed)}: look at their files before you ship them")
    if given.advisories is None:
        print("advisories       FAILED: none are given, so nobody has looked for known vulnerabilities")
        print("                 get the PyPI export of the OSV database and run: make audit ADVISORIES=all.zip")
        return 2
    try:
        found = known_against([(one["name"], one.get("version", "")) for one in components], given.advisories)
    except (Unusable, OSError) as error:
        print(f"advisories       FAILED: {error}")
        return 2
    print(f"{'advisories':16} {'FAILED' if found else 'well'}: {len(found)} known vulnerabilities")
    for line in found:
        print(f"  {line}")
    return 0 if well and not found else 1


if __name__ == "__main__":
    sys.exit(main())
