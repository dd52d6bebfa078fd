"""Lets nvidia-resiliency-ext run where there is no GPU: what it asks of CUDA is answered by the CPU.

Nothing of the package is replaced, only torch's words that name a device. On a GPU node nothing here is called. It must
be imported by the script itself, since the package's own saving process runs the script's imports again.
"""

import torch
from torch.overrides import TorchFunctionMode


class OnCpu(TorchFunctionMode):
    """`with OnCpu():` tensors say that they are on CUDA, and CUDA is the CPU."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function == torch.Tensor.is_cuda.__get__:
            return True
        if function == torch.Tensor.cuda:
            return args[0]
        kwargs = {name: "cpu" if value == "cuda" else value for name, value in (kwargs or {}).items()}
        return function(*("cpu" if isinstance(one, str) and one == "cuda" else one for one in args), **kwargs)


if not torch.cuda.is_available():
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.current_device = lambda: "cpu"
