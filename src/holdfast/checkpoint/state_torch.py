"""What a training's state consists of, taken apart for saving and put together again.

Called by the checkpointer. `state` maps the user's names to modules, optimizers, tensors, objects with
`state_dict`/`load_state_dict` (schedulers, data loaders) and plain values. Two parts result:

* shared: modules, optimizers and tensors, the same on every rank (or sharded over them); large
* local: everything else and the random generators, one per rank; small

No time passes here and nothing is read or written.
"""

import io
import random
import sys
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from holdfast.checkpoint.errors import RestoreError
from holdfast.checkpoint.staging_torch import Stager

RNG = "holdfast.rng"
"""Key of the random generators among a rank's local parts."""


def is_shared(value: Any) -> bool:
    """True for what all ranks hold together: modules, optimizers, tensors and mappings of tensors only."""
    if isinstance(value, (torch.nn.Module, torch.optim.Optimizer, torch.Tensor)):
        return True
    return isinstance(value, Mapping) and bool(value) and all(isinstance(v, torch.Tensor) for v in value.values())


def is_sharded(state: Mapping[str, Any]) -> bool:
    """True when a module, optimizer or tensor of the state is spread over ranks.

    torch's tensor module takes half a second to import; where nobody has imported it, there is no DTensor.
    """
    module = sys.modules.get("torch.distributed.tensor")
    kind = getattr(module, "DTensor", None)
    return kind is not None and any(isinstance(t, kind) for value in state.values() for t in _tensors_of(value))


def _tensors_of(value: Any) -> Iterable[torch.Tensor]:
    if isinstance(value, torch.nn.Module):
        return value.parameters()
    if isinstance(value, torch.optim.Optimizer):
        return (tensor for group in value.param_groups for tensor in group["params"])
    if isinstance(value, Mapping):
        return (tensor for tensor in value.values() if isinstance(tensor, torch.Tensor))
    return (value,) if isinstance(value, torch.Tensor) else ()


def unwrapped(value: Any) -> Any:
    """A module without its data-parallel wrapper, so that names do not depend on how it was launched."""
    return value.module if isinstance(value, DistributedDataParallel) else value


def take_shared(state: Mapping[str, Any]) -> dict[str, Any]:
    """Name -> state dict, tensor or mapping of tensors; nothing is copied."""
    parts: dict[str, Any] = {}
    for name, value in state.items():
        if is_shared(value):
            inner = unwrapped(value)
            parts[name] = inner.state_dict() if hasattr(inner, "state_dict") else inner
    return parts


def take_local(state: Mapping[str, Any]) -> dict[str, Any]:
    """Name -> state dict or plain value of everything that belongs to this rank, and its random generators."""
    parts: dict[str, Any] = {RNG: take_rng()}
    for name, value in state.items():
        if not is_shared(value):
            parts[name] = value.state_dict() if hasattr(value, "state_dict") else value
    return parts


def apply_shared(state: MutableMapping[str, Any], parts: Mapping[str, Any]) -> None:
    """Load the shared parts into the live objects.

    Raises:
        RestoreError: a part is missing, or does not fit the object of that name.
    """
    for name, value in state.items():
        if not is_shared(value):
            continue
        if name not in parts:
            raise RestoreError(f"the checkpoint holds no part named {name!r}; it has {', '.join(sorted(parts))}")
        try:
            _load_into(unwrapped(value), parts[name])
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise RestoreError(f"part {name!r} of the checkpoint does not fit this program's: {error}") from error


def apply_local(state: MutableMapping[str, Any], parts: Mapping[str, Any]) -> list[str]:
    """Load a rank's own parts; plain values are replaced in the mapping, lists and dicts in place.

    Returns:
        Names in `state` that the checkpoint does not hold; they keep their present value.
    """
    missing: list[str] = []
    for name, value in list(state.items()):
        if is_shared(value):
            continue
        if name not in parts:
            missing.append(name)
        elif hasattr(value, "load_state_dict"):
            value.load_state_dict(parts[name])
        elif isinstance(value, dict) and isinstance(parts[name], dict):
            value.clear()
            value.update(parts[name])
        elif isinstance(value, list) and isinstance(parts[name], list):
            value[:] = parts[name]
        else:
            state[name] = parts[name]
    if RNG in parts:
        apply_rng(parts[RNG])
    return missing


def not_finite(state: Mapping[str, Any]) -> str | None:
    """Say which parameter holds NaN or infinity, or None; made for `Checkpointer(refuse_if=not_finite)`."""
    for name, value in state.items():
        if isinstance(value, torch.nn.Module):
            for key, tensor in value.named_parameters():
                # One sum instead of a mask: NaN and infinity survive every addition.
                if tensor.is_floating_point() and not bool(torch.isfinite(tensor.detach().sum(dtype=torch.float64))):
                    return f"{name}.{key} is not finite"
    return None


def take_rng() -> dict[str, Any]:
    """States of the random generators a training may draw from: Python's, NumPy's (when imported), torch's."""
    found: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if "numpy" in sys.modules:
        found["numpy"] = sys.modules["numpy"].random.get_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        found["cuda"] = torch.cuda.get_rng_state()
    return found


def apply_rng(found: Mapping[str, Any]) -> None:
    """Set the random generators to saved states; a generator that is not in this process is left out."""
    random.setstate(found["python"])
    torch.set_rng_state(found["torch"])
    if "numpy" in found and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(found["numpy"])
    if "cuda" in found and torch.cuda.is_available():
        torch.cuda.set_rng_state(found["cuda"])


def pack(parts: Mapping[str, Any]) -> bytes:
    """Local parts as bytes; they are independent of the live objects from here on.

    Raises:
        TypeError, AttributeError, pickle.PicklingError: a user object cannot be pickled.
    """
    buffer = io.BytesIO()
    torch.save(dict(parts), buffer)
    return buffer.getvalue()


def unpack(content: bytes) -> dict[str, Any]:
    """The reverse of `pack`. Like any pickle, only for content one trusts: it was hashed, not signed."""
    parts: dict[str, Any] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=False)
    return parts


def _load_into(target: Any, part: Any) -> None:
    if isinstance(target, torch.Tensor):
        with torch.no_grad():
            target.copy_(part)
    elif isinstance(target, torch.optim.Optimizer):
        # An optimizer keeps the very tensors it is given; these lie in a mapped file that will be pruned.
        target.load_state_dict(Stager().stage(part))
    elif hasattr(target, "load_state_dict"):
        target.load_state_dict(part)
    else:
        for key, tensor in target.items():
            with torch.no_grad():
                tensor.copy_(part[key])
