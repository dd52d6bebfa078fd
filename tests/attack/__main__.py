"""`python -m tests.attack`: every listed attempt with its actor, asset and the check that is removed, and how many there are.

`--json` prints the same for programs.
"""

from __future__ import annotations

import sys
from itertools import groupby

import msgspec
from tests.attack.listing import attempts

if __name__ == "__main__":
    found = attempts()
    if sys.argv[1:] == ["--json"]:
        print(msgspec.json.encode(found).decode())
        sys.exit()
    for actor, of in groupby(found, key=lambda one: one.actor):
        print(f"\n{actor}")
        for one in of:
            print(f"  {one.asset}: {one.attempt}\n      {one.test}, removed: {one.removed}")
    print(f"\n{len(found)} attempts, each made as shipped and with its check removed")
