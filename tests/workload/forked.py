"""Body of a rank that is forked instead of started: the module runs as it would with `python -m`."""

import os
import runpy
import sys


def run_module(module, arguments, environ, output):
    os.environ.clear()
    os.environ.update(environ)
    fd = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    sys.argv = [module, *arguments]
    runpy.run_module(f"holdfast.workload.{module}", run_name="__main__", alter_sys=True)
