"""A warm standby: an interpreter that has imported its modules and waits to become a rank.

Started by `standby.Standby` as `python -u standby_main.py SOCKET_FD MODULE,MODULE...`. It imports, says so with one
byte, and sleeps in recvmsg. The activation brings environment, arguments, working folder and the two log files; from
there on it does what `python script.py` (or `python -m module`) would have done. It opens no port, touches no device
and draws no random number before that. The end of the socket (the launcher is gone or has no use for it) ends it.

Nothing is imported here that a bare interpreter has not loaded already: `holdfast` itself stays out, so that a script
finds in `sys.modules` what it asked for with `--preload` and nothing else of ours.
"""

import marshal
import os
import sys

TYPE_CHECKING = False  # typing is not imported: a bare interpreter has not loaded it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# Imported by torch at the first optimizer or DDP of every script (0.8 s on a fast core), though not by `import torch`.
_ALONG_WITH = {"torch": ("torch._dynamo",)}


def _warm(modules: list[str]) -> None:
    for name in modules:
        for wanted in (name, *_ALONG_WITH.get(name, ())):
            try:
                __import__(wanted)
            except Exception as error:  # noqa: BLE001 - the rank itself will meet the same error and report it
                sys.stderr.write(f"holdfast standby: cannot preload {wanted}: {type(error).__name__}: {error}\n")


def _receive(descriptor: int) -> "tuple[dict[str, Any], list[int]] | None":
    """The activation and the two log descriptors, or None at the socket's end.

    `_socket` is what the `socket` module stands on; using it alone keeps that module's import out of here. The
    activation itself is a file in memory that comes as a third descriptor, so that its size is of no matter.
    """
    import _socket  # noqa: PLC0415 - see the docstring

    sock = _socket.socket(fileno=descriptor)
    try:  # noqa: SIM105 - contextlib is not loaded in a bare interpreter
        sock.sendall(b"W")
    except BrokenPipeError:
        pass  # activated before it was ready: what was sent can still be read
    head, ancillary, _, _ = sock.recvmsg(1, _socket.CMSG_SPACE(3 * 4))
    sock.close()
    if not head:
        return None
    files = [
        int.from_bytes(data[n : n + 4], sys.byteorder)
        for level, kind, data in ancillary
        if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS)
        for n in range(0, len(data), 4)
    ]
    with open(files.pop(), "rb") as file:  # noqa: PTH123
        file.seek(0)
        order = marshal.load(file)  # noqa: S302 - from our own launcher, over our own socketpair
    return order, files


def _become(order: "dict[str, Any]", files: list[int]) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    for target, descriptor in zip((1, 2), files, strict=True):
        os.dup2(descriptor, target)
        os.close(descriptor)
    wanted = order["env"]
    for name in set(os.environ) - set(wanted):
        del os.environ[name]
    # A drill's hook that was loaded with the interpreter waits for RANK, so RANK comes when all the rest is there.
    for name in sorted(wanted, key="RANK".__eq__):
        os.environ[name] = wanted[name]
    os.chdir(order["cwd"])
    sys.argv[:] = order["argv"]
    sys.orig_argv[:] = order["orig_argv"]


def _run_script(path: str) -> None:
    """What the interpreter does for `python path`: a fresh `__main__`, its folder first on `sys.path`."""
    from importlib.machinery import SourceFileLoader  # noqa: PLC0415 - needed once there is a script

    full = os.path.abspath(path)  # noqa: PTH100 - pathlib may not be loaded
    if not sys.flags.safe_path:
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))  # noqa: PTH120
    main = type(sys)("__main__")
    main.__dict__.update(
        __file__=full,
        __cached__=None,
        __loader__=SourceFileLoader("__main__", full),
        __annotations__={},
        __builtins__=sys.modules["builtins"],
    )
    sys.modules["__main__"] = main
    with open(full, "rb") as file:  # noqa: PTH123
        source = file.read()
    _without_our_frames(exec, compile(source, full, "exec", dont_inherit=True), main.__dict__)


def _run_module(name: str) -> None:
    """What the interpreter does for `python -m name`."""
    import runpy  # noqa: PLC0415 - needed for modules alone

    if not sys.flags.safe_path:
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    main = type(sys)("__main__")
    main.__dict__.update(__builtins__=sys.modules["builtins"], __annotations__={})
    sys.modules["__main__"] = main
    # What `python -m` itself calls; the stubs leave it out.
    _without_our_frames(runpy._run_module_as_main, name)  # type: ignore[attr-defined]  # noqa: SLF001


def _without_our_frames(call: "Callable[..., object]", *args: object) -> None:
    """Run; a traceback that is printed begins in the user's file, as it would without us."""
    try:
        call(*args)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001 - printed and turned into exit code 1, as the interpreter does
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.exit(1)


def main() -> None:
    """Warm up, wait, become the rank."""
    descriptor = int(sys.argv[1])
    modules = [name for name in sys.argv[2].split(",") if name]
    del sys.path[0]  # this file's folder: a rank's own imports must not find our modules
    _warm(modules)
    received = _receive(descriptor)
    if received is None:
        return
    order, files = received
    _become(order, files)
    if order["module"]:
        _run_module(order["module"])
    else:
        _run_script(order["script"])


if __name__ == "__main__":
    main()
