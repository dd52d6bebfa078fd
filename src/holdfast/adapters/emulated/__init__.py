"""Emulated GPUs for drills and machines without any: an NVML library of our own, `nvidia-smi` and `dcgmi`, one state.

`devices.prepare` makes a folder: `state` (a file that all share), `lib/libnvidia-ml.so.1` (built from `nvml.c`) and
`bin/` (the commands). Whoever has `lib` on its LD_LIBRARY_PATH and `bin` on its PATH sees the GPUs; everything that it
is shown says that they are emulated.
"""
