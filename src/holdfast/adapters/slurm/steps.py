"""What `holdfast srun` must know of srun's command line and its file-name patterns. Its words: `srun_words`. Pure.

`launch/step*.py` call this. Options are those of srun(1) of 21.08 to 25.11; an option that is not known here is taken
for one without a value and passed on as it is. No time passes here.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence

from ClusterShell.NodeSet import NodeSet, NodeSetException
from msgspec import Struct

from holdfast.errors import UsageError

_SHORT_WITH_VALUE = frozenset("AbBcCdDeGiJLmMnNopqrStTUwWxF")
_LONG_WITH_VALUE = frozenset({
    "accel-bind", "account", "acctg-freq", "bb", "bbf", "bcast-exclude", "begin", "cluster", "cluster-constraint",
    "clusters", "chdir", "comment", "constraint", "container", "container-image", "container-mounts",
    "container-name", "container-workdir", "container-env", "container-id", "context", "core-spec",
    "cores-per-socket", "cpu-bind", "cpu-freq", "cpus-per-gpu", "cpus-per-task", "deadline", "delay-boot",
    "dependency", "distribution", "epilog", "cpu_bind", "error", "exclude", "export", "extra", "extra-node-info",
    "gpu-bind", "gpu-freq", "gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task", "gres", "gres-flags",
    "het-group", "hint", "input", "job-name", "jobid", "licenses", "mail-type", "mail-user", "mcs-label", "mem",
    "mem-bind", "mem-per-cpu", "mem-per-gpu", "mincpus", "mpi", "msg-timeout", "network", "nodefile", "nodelist",
    "nodes", "ntasks", "ntasks-per-core", "ntasks-per-gpu", "ntasks-per-node", "ntasks-per-socket",
    "ntasks-per-tres", "open-mode", "output", "partition", "power", "prefer", "priority", "profile", "prolog",
    "qos", "relative", "reservation", "segment", "signal", "slurmd-debug", "sockets-per-node", "switches",
    "task-epilog", "task-prolog", "tasks-per-node", "thread-spec", "threads", "threads-per-core", "time",
    "time-min", "tmp", "tres-bind", "treewidth", "tres-per-task", "uid", "gid", "wait", "wckey",
})  # fmt: skip
_LONG_ALONE = frozenset({
    "bcast", "compress", "consolidate-segments", "contiguous", "debugger-test", "disable-status", "exact",
    "exclusive", "external-launcher", "help", "hold", "immediate", "interactive", "kill-on-bad-exit", "label",
    "multi-prog", "nice", "no-allocate", "no-kill", "oom-kill-step", "overcommit", "overlap", "oversubscribe",
    "preserve-env", "propagate", "pty", "quiet", "quit-on-interrupt", "reboot", "resv-ports", "send-libs",
    "spread-job", "spread-segments", "stepmgr", "test-only", "unbuffered", "usage", "use-min-nodes", "verbose",
    "version", "wait-for-children", "x11",
})  # fmt: skip
_LONG = _LONG_WITH_VALUE | _LONG_ALONE
_SHORT_NAMES = {
    "n": "ntasks", "N": "nodes", "w": "nodelist", "x": "exclude", "o": "output", "e": "error", "i": "input",
    "K": "kill-on-bad-exit", "W": "wait", "r": "relative", "F": "nodefile", "m": "distribution", "l": "label",
    "u": "unbuffered", "Q": "quiet", "Z": "no-allocate", "J": "job-name", "c": "cpus-per-task", "V": "version",
    "h": "help", "k": "no-kill", "D": "chdir",
}  # fmt: skip
_ALIASES = {"tasks-per-node": "ntasks-per-node", "cluster": "clusters", "cpu_bind": "cpu-bind"}
OWN_OPTIONS = frozenset({"auto-resume", "spares", "policy", "max-restarts", "job-dir"})
_OWN_NEAR = re.compile(r"--(?:auto[_-]?resume|auto-?resum|autoresume|resume-auto|spare|max_restarts|job_dir)(?:=.*)?$")
_REFUSED = {
    "relative": "--relative counts nodes of the allocation, which change when one is left out; use --nodelist",
    "nodefile": "--nodefile fixes the nodes of every task; use --nodelist or --nodes",
    "no-allocate": "--no-allocate runs outside any allocation",
    "het-group": "steps of heterogeneous jobs cannot be run again on other nodes",
    "test-only": "--test-only runs nothing",
}


class SrunOption(Struct, frozen=True):
    """One option as given: `words` are its one or two arguments; `name` is the long name, empty when not known."""

    name: str
    value: str | None
    words: tuple[str, ...]


class SrunCall(Struct, frozen=True):
    """A parsed command line: srun's options in order, and the program with its arguments."""

    options: tuple[SrunOption, ...]
    program: tuple[str, ...]

    def value(self, name: str) -> str | None:
        """The last value given for this option (long name): srun takes the last; None when it is not there."""
        found = [option.value or "" for option in self.options if option.name == name]
        return found[-1] if found else None

    def has(self, name: str) -> bool:
        """The option is there."""
        return any(option.name == name for option in self.options)


class OwnOptions(Struct, frozen=True):
    """What of the command line is Holdfast's, and what is srun's."""

    own: tuple[str, ...]
    rest: tuple[str, ...]


def take_own(argv: Sequence[str]) -> OwnOptions:
    """Split Holdfast's options from srun's; both may stand in any order before the program.

    Raises:
        UsageError: an option that nearly is one of Holdfast's, or one without its value.
    """
    own: list[str] = []
    rest: list[str] = []
    at = 0
    while at < len(argv):
        word = argv[at]
        name, has_value, value = word[2:].partition("=") if word.startswith("--") else ("", "", "")
        if name in OWN_OPTIONS:
            at += 1
            if name == "auto-resume":
                _check_auto_resume(word, value)
            elif not has_value:
                if at == len(argv):
                    raise UsageError(f"--{name} needs a value")
                value, at = argv[at], at + 1
            own.append(f"--{name}={value}")
            continue
        if _OWN_NEAR.match(word):
            right = (
                "--auto-resume=1" if "resum" in name else {"spare": "--spares"}.get(name, f"--{name}").replace("_", "-")
            )
            raise UsageError(f"{word}: no such option; write {right}")
        width = _width(argv, at)
        if width == 0:
            break
        rest += argv[at : at + width]
        at += width
    return OwnOptions(tuple(own), (*rest, *argv[at:]))


def _check_auto_resume(word: str, value: str) -> None:
    if value not in {"0", "1"}:
        raise UsageError(f"{word}: write --auto-resume=1 (or --auto-resume=0 for a plain srun)")


def _width(argv: Sequence[str], at: int) -> int:
    """How many words the option at this place takes; 0 when the program begins here."""
    word = argv[at]
    if word == "--" or not word.startswith("-") or word == "-":
        return 0
    return min(len(_option(argv, at).words), len(argv) - at)


def _option(argv: Sequence[str], at: int) -> SrunOption:
    word = argv[at]
    following = argv[at + 1] if at + 1 < len(argv) else None
    if word.startswith("--"):
        given, has_value, value = word[2:].partition("=")
        name = _long_name(given)
        if has_value:
            return SrunOption(name, value, (word,))
        if name in _LONG_WITH_VALUE and following is not None:
            return SrunOption(name, following, (word, following))
        return SrunOption(name, None, (word,))
    return _short_option(word, following)


def _short_option(word: str, following: str | None) -> SrunOption:
    """`-N2`, `-N 2`, `-lN 2`: flags may stand together before the one that takes a value."""
    for place, letter in enumerate(word[1:], start=1):
        name = _SHORT_NAMES.get(letter, "")
        if letter in _SHORT_WITH_VALUE:
            if word[place + 1 :]:
                return SrunOption(name, word[place + 1 :], (word,))
            return SrunOption(name, following, (word,) if following is None else (word, following))
        if letter in "KIk":  # an optional value follows directly: -K0
            return SrunOption(name, word[place + 1 :] or None, (word,))
    return SrunOption(_SHORT_NAMES.get(word[1:2], "") if len(word) == 2 else "", None, (word,))


def _long_name(given: str) -> str:
    """The option meant: as getopt_long(3), any prefix that fits only one."""
    fits = [given] if given in _LONG else [name for name in _LONG if name.startswith(given)]
    return _ALIASES.get(fits[0], fits[0]) if len(fits) == 1 else ""


def read_call(argv: Sequence[str]) -> SrunCall:
    """Parse srun's own command line.

    Raises:
        UsageError: there is no program, or it asks for something that cannot be run again elsewhere.
    """
    options: list[SrunOption] = []
    at = 0
    while at < len(argv) and (width := _width(argv, at)):
        options.append(_option(argv, at))
        at += width
    program = tuple(argv[at + 1 :] if argv[at : at + 1] == ["--"] else argv[at:])
    call = SrunCall(tuple(options), program)
    if not program:
        raise UsageError("holdfast srun: no program to run is given")
    if ":" in program:
        raise UsageError("holdfast srun --auto-resume=1 does not run several components (`:`); use one srun for each")
    for name, why in _REFUSED.items():
        if call.has(name):
            raise UsageError(f"holdfast srun --auto-resume=1: {why}")
    if (call.value("distribution") or "").startswith(("arbitrary", "a:")):
        raise UsageError("holdfast srun --auto-resume=1: --distribution=arbitrary fixes the nodes of every task")
    return call


# --- which nodes ------------------------------------------------------------------------------------------------------


class StepShape(Struct, frozen=True):
    """How many nodes and tasks an attempt of the step takes, and the nodes it may use, in order of preference."""

    nodes: int
    tasks: int | None
    candidates: tuple[str, ...]
    """First choice first; the last ones are the spares."""
    export: str | None
    """What of the environment tasks get, as `--export` has it; None: everything."""


def shape_of(call: SrunCall, allocation: Sequence[str], environ: Mapping[str, str], *, spares: int | None) -> StepShape:
    """What the step asks for, in this allocation.

    Args:
        call: the command line.
        allocation: the job's nodes.
        environ: SLURM_NTASKS and the like, which srun reads too.
        spares: `--spares`, None when not given: then every node that the step does not take is one.

    Raises:
        UsageError: more nodes than there are, or tasks that do not follow from what is given.
    """
    listed = _nodes(call.value("nodelist"), "--nodelist")
    banned = set(_nodes(call.value("exclude"), "--exclude"))
    usable = [node for node in allocation if node not in banned]
    unknown = [node for node in listed if node not in allocation]
    if unknown:
        raise UsageError(f"--nodelist: {', '.join(unknown)} is not in this allocation ({','.join(allocation)})")
    asked = _count(call.value("nodes"))
    if asked is None and listed:
        asked = len(listed)
    kept = spares or 0
    want = asked if asked is not None else len(usable) - kept
    if want < 1 or want + kept > len(usable):
        have = f"{len(usable)} usable node{'s' if len(usable) != 1 else ''}"
        raise UsageError(f"--nodes {want} and --spares {kept} need {want + kept} nodes; this allocation has {have}")
    ordered = [node for node in usable if node in listed] + [node for node in usable if node not in listed]
    # `sbatch --export` holds for the steps of its script, too.
    exported = call.value("export") or environ.get("SLURM_EXPORT_ENV") or None
    return StepShape(want, _tasks(call, environ, len(allocation), want), tuple(ordered), exported)


def _nodes(text: str | None, option: str) -> list[str]:
    if not text:
        return []
    if "/" in text:
        raise UsageError(f"{option}={text}: a file of node names cannot be used with --auto-resume=1; list the nodes")
    try:
        return [str(node) for node in NodeSet(text)]
    except NodeSetException as error:
        raise UsageError(f"{option}={text}: {error}") from error


def _count(text: str | None) -> int | None:
    """`4`, `2-4` (the larger), `4k`; None when it is not given. srun itself judges anything else."""
    if not text:
        return None
    number = text.rpartition("-")[2]
    return int(number) if number.isdecimal() else None


def _tasks(call: SrunCall, environ: Mapping[str, str], allocated: int, want: int) -> int | None:
    """Tasks of the step when they must be said: the batch job's number counts the spares' too."""
    given = call.value("ntasks")
    if given is not None:
        return int(given) if given.isdecimal() else None
    if want == allocated or call.has("ntasks-per-node"):
        return None
    per_node = environ.get("SLURM_NTASKS_PER_NODE", "")
    if per_node.isdecimal():
        return int(per_node) * want
    total = environ.get("SLURM_NTASKS", "") or environ.get("SLURM_NPROCS", "")
    if not total.isdecimal():
        return None
    if int(total) % allocated:
        raise UsageError(
            f"the job's {total} tasks do not spread evenly over its {allocated} nodes; give --ntasks for {want} nodes"
        )
    return int(total) // allocated * want


_DROPPED = frozenset({"nodes", "nodelist", "exclude", "kill-on-bad-exit", "overlap", "export"})
_OURS_EXPORTED = (
    "HOLDFAST_JOB_ID", "HOLDFAST_JOB_DIR", "HOLDFAST_ATTEMPT", "HOLDFAST_EPOCH", "HOLDFAST_RESTORE_STEP",
    "HOLDFAST_TELEMETRY_DIR",
)  # fmt: skip


def attempt_argv(
    call: SrunCall, shape: StepShape, nodes: Sequence[str], *, overlap: bool, ended_by: str = "us"
) -> list[str]:
    """The command line of srun for one attempt on these nodes.

    Args:
        call: as the user gave it.
        shape: of the step.
        nodes: where it runs.
        overlap: a step before it may still hold the nodes in the scheduler's eyes.
        ended_by: who ends the other tasks when one has ended badly. `us`: Slurm must not, so that what it says of a
            step that was ended tells of a person; `srun`: it does, unless the user says otherwise; `user`: as given.
    """
    argv = ["srun", f"--nodes={len(nodes)}", f"--nodelist={','.join(nodes)}"]
    if shape.tasks is not None:
        argv.append(f"--ntasks={shape.tasks}")
    bad_exit = (call.value("kill-on-bad-exit") or "1") if call.has("kill-on-bad-exit") else ""
    if ended_by != "user" or bad_exit:
        argv.append(f"--kill-on-bad-exit={'0' if ended_by == 'us' else bad_exit or '1'}")
    if overlap or call.has("overlap"):
        argv.append("--overlap")
    if shape.export is not None:
        argv.append(f"--export={exported_with_ours(shape.export)}")
    if not call.has("open-mode"):
        argv.append("--open-mode=append")
    dropped = _DROPPED | ({"ntasks"} if shape.tasks is not None else set())
    for option in call.options:
        if option.name not in dropped and not (overlap and option.name == "exclusive"):
            argv += option.words
    return [*argv, *call.program]


def exported_with_ours(exported: str) -> str:
    """`--export` of the user with the variables of an attempt; `ALL` has them anyway."""
    names = [name for name in exported.split(",") if name]
    if any(name.upper() == "ALL" for name in names):
        return exported
    kept = [] if exported.upper() in {"NONE", "NIL"} else names
    return ",".join([*kept, *_OURS_EXPORTED])


# --- file-name patterns -----------------------------------------------------------------------------------------------

_PATTERN = re.compile(r"%(?P<pad>\d{0,2})(?P<letter>[%AajJNnstuxb])")


def output_glob(pattern: str, *, job: str, array_job: str, array_task: str, user: str, name: str) -> str:
    """The glob of the files that srun writes for `--output`; empty when it goes to srun's own output or nowhere.

    Letters as in srun(1), "FILENAME PATTERN"; what is only known on the nodes (%N %n %s %t %J) becomes `*`.
    """
    if not pattern or pattern in {"none", "all", "-", "/dev/null"} or pattern.isdecimal():
        return ""
    if "\\" in pattern:
        return pattern.replace("\\", "")
    known = {"%": "%", "A": array_job or job, "a": array_task, "j": job, "u": user, "x": name}

    def put(found: re.Match[str]) -> str:
        letter = found["letter"]
        if letter not in known:
            return "*"
        text = known[letter]
        width = int(found["pad"] or 0)
        return text.zfill(width) if text.isdecimal() else _literal(text)

    parts, last = [], 0
    for found in _PATTERN.finditer(pattern):
        parts += [_literal(pattern[last : found.start()]), put(found)]
        last = found.end()
    return "".join([*parts, _literal(pattern[last:])])


def _literal(text: str) -> str:
    """Text without meaning to glob."""
    return re.sub(r"([*?\[])", r"[\1]", text)


def signal_name(number: int) -> str:
    """`SIGKILL`; the number when it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
