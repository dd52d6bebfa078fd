"""The two real-time signals that Holdfast uses inside a training process.

The launcher sends `STACK_SIGNAL` to have a rank append its Python stacks to its `.stacks` file. It must
look at `SlotView.stack_signal` first: a process that has not armed the signal dies of it. The drill hook
sends `DRILL_SIGNAL` to its own process only. Real-time numbers are used because training scripts, Slurm and
torchrun use SIGUSR1, SIGUSR2, SIGTERM and SIGCONT for themselves.
"""

import signal

STACK_SIGNAL: int = signal.SIGRTMIN + 5
DRILL_SIGNAL: int = signal.SIGRTMIN + 6
