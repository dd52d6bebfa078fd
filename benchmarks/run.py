"""`make bench`: every benchmark in turn, or those that are named. Each is a script of its own with a --help."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
NOT_BENCHMARKS = {"run", "peers", "filled", "against"}


def main() -> int:
    known = {path.stem: path for path in sorted(HERE.glob("*.py")) if path.stem not in NOT_BENCHMARKS}
    wanted = sys.argv[1:] or list(known)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        print(f"bench: no benchmark {unknown[0]!r}: choose from {', '.join(known)}", file=sys.stderr)
        return 2
    print(
        f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, kernel {platform.release()}"
    )
    failed = []
    for name in wanted:
        print(f"\n== {name} ==", flush=True)
        if subprocess.run([sys.executable, str(known[name])], check=False).returncode:
            failed.append(name)
    if failed:
        print(f"\nbench: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
