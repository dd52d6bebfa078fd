"""Loaded by Python's `site` at the start of a rank that is open to drills; installs the hook.

Afterwards it gives way to the `sitecustomize` that would have been loaded without it, in its place in
`sys.modules`. An error of that one is its own and passes; an error of ours costs one line on stderr.
"""

# ruff: noqa: PTH100, PTH120, INP001
# This folder goes on PYTHONPATH as it is, so it is no package; pathlib would slow the start of every process that
# the rank starts.

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location

_HERE = os.path.dirname(os.path.abspath(__file__))


def _find_holdfast() -> None:
    # The rank's Python may be another one than the launcher's, without Holdfast installed. Only the package itself is
    # made known then, not the folder around it: that would bring the launcher's other packages with it.
    if "holdfast" in sys.modules or PathFinder.find_spec("holdfast") is not None:
        return
    package = os.path.dirname(os.path.dirname(_HERE))
    spec = spec_from_file_location("holdfast", f"{package}/__init__.py", submodule_search_locations=[package])
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["holdfast"] = module
        spec.loader.exec_module(module)


def _install_hook() -> None:
    if not os.environ.get("HOLDFAST_DRILL_DIR"):
        return
    try:
        _find_holdfast()
        from holdfast.failpoint.hook import install  # noqa: PLC0415 - only where drills are allowed

        install()
    except Exception as error:  # noqa: BLE001 - a drill that cannot be armed must not stop a training
        sys.stderr.write(f"holdfast.failpoint: no drills in this process: {error!r}\n")


def _give_way() -> None:
    path = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
    spec = PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_install_hook()
_give_way()
