"""The parts of kubernetes-asyncio that are used, without its 768 modules of models: 40 MiB and two seconds less.

`api` calls `load`. The library's packages import all that they have as soon as any module of theirs is imported. So two
of them, itself and its `client`, are put in place unexecuted; the modules that read a kubeconfig, keep tokens fresh and
hold connections need no more. Whoever asks such a package for anything else has it executed then, as always. No time
passes here.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from holdfast.errors import UsageError

NAME = "kubernetes_asyncio"
CLIENT = f"{NAME}.client"


def load() -> tuple[Any, Any, Any]:
    """The library's `config`, its `Configuration` and its `RESTClientObject`.

    Raises:
        UsageError: it is not installed.
    """
    if NAME not in sys.modules:
        _put_in_place()
        client = sys.modules[CLIENT].__dict__
        # The readers of kubeconfigs name these two; the second is for functions that are not used here.
        client["Configuration"] = importlib.import_module(f"{CLIENT}.configuration").Configuration
        client["ApiClient"] = None
        importlib.import_module(f"{NAME}.config")
        del client["ApiClient"]
    config, rest = importlib.import_module(f"{NAME}.config"), importlib.import_module(f"{CLIENT}.rest")
    return config, importlib.import_module(f"{CLIENT}.configuration").Configuration, rest.RESTClientObject


def _put_in_place() -> None:
    spec = importlib.util.find_spec(NAME)
    if spec is None or not spec.submodule_search_locations:
        raise UsageError("Kubernetes needs a library more: pip install 'holdfast[kubernetes]'")
    sys.modules[NAME] = _unexecuted(spec)
    found = importlib.util.find_spec(CLIENT)
    if found is None:
        del sys.modules[NAME]
        raise UsageError(f"{CLIENT} is not there: pip install --force-reinstall {NAME.replace('_', '-')}")
    sys.modules[CLIENT] = _unexecuted(found)
    sys.modules[NAME].__dict__["client"] = sys.modules[CLIENT]


def _unexecuted(spec: ModuleSpec) -> ModuleType:
    module = importlib.util.module_from_spec(spec)

    def ask(name: str) -> Any:
        if name.startswith("__") or spec.loader is None:
            raise AttributeError(name)
        module.__dict__.pop("__getattr__", None)
        spec.loader.exec_module(module)
        return getattr(module, name)

    module.__dict__["__getattr__"] = ask
    return module
