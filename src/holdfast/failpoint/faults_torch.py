"""The faults that need torch, imported only in processes that have imported torch themselves.

Called by `faults` and the hook. No function here reads a clock.
"""

import gc
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from holdfast.failpoint.drill import BEYOND_MEMORY_BYTES, CannotInjectError, Drill, Mark

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

# A tag that no training uses, so that the receive never meets a message meant for someone else ("HF").
_TAG = 0x4846


def _has_peers() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _peer_of(rank: int, named: int | None) -> int:
    return (rank + 1) % dist.get_world_size() if named is None else named


def _one_element() -> torch.Tensor:
    device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
    return torch.zeros(1, device=device)


def receive_for_ever(drill: Drill, mark: Mark) -> bool:
    """Wait in a real `recv` for a message that only an abort sends; False when there is no process group."""
    if not _has_peers():
        return False
    peer = _peer_of(dist.get_rank(), drill.param("peer"))
    if peer == dist.get_rank() or peer >= dist.get_world_size():
        raise CannotInjectError(f"params.peer: {peer} is not another rank of {dist.get_world_size()}")
    mark()
    dist.recv(_one_element(), src=peer, tag=_TAG)
    return True


def release_receiver(rank: int, named: int | None) -> None:
    """On the peer of a rank that hangs in `receive_for_ever`: send what it waits for."""
    if _has_peers() and _peer_of(rank, named) == dist.get_rank():
        dist.send(_one_element(), dst=rank, tag=_TAG)


def poison_parameter(drill: Drill, mark: Mark) -> None:
    """Fill a parameter with NaN: the one named, or the first of the largest model that is being trained."""
    wanted = drill.param("parameter")
    models = [thing for thing in gc.get_objects() if _is_module(thing)]
    inner = {id(child) for model in models for child in model.children()}
    roots = [model for model in models if id(model) not in inner]
    roots.sort(key=lambda model: sum(p.numel() for p in model.parameters() if p.requires_grad), reverse=True)
    for model in roots:
        for name, parameter in model.named_parameters():
            # Under DDP the user's own names carry the wrapper's before them.
            is_wanted = wanted is None or name == wanted or name.endswith(f".{wanted}")
            if is_wanted and parameter.requires_grad and parameter.is_floating_point() and parameter.numel():
                mark()
                with torch.no_grad():
                    parameter.fill_(float("nan"))
                return
    what = "trained parameter" if wanted is None else f"trained parameter named {wanted!r}"
    raise CannotInjectError(f"no live torch module with a {what}")


def _is_module(thing: Any) -> bool:
    # `isinstance` asks lazy proxies for their class, which runs their code; the type itself does not.
    return issubclass(type(thing), torch.nn.Module)


def allocate_too_much(mark: Mark) -> None:
    """Raise the error of torch's own allocator: of the GPU in use, else of the CPU."""
    mark()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        device = torch.device("cuda", torch.cuda.current_device())
        total = torch.cuda.get_device_properties(device).total_memory
        torch.empty(2 * total, dtype=torch.uint8, device=device)
    torch.empty(BEYOND_MEMORY_BYTES, dtype=torch.uint8)


def on_optimizer_steps(called: Callable[[], None]) -> "RemovableHandle | None":
    """Have `called()` run after each optimizer step of this process; None while no optimizer class is loaded."""
    optimizer = sys.modules.get("torch.optim.optimizer")
    if optimizer is None:
        return None
    handle: RemovableHandle = optimizer.register_optimizer_step_post_hook(lambda *_: called())
    return handle
