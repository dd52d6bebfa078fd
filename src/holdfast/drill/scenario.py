"""A drill written down: TOML in, `Scenario` out, every wrong key named with file, line and the nearest right one.

Called by the command line, the runner and tests. Reads the files that ship in `scenarios/` and those that a person
names; no time passes here.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from holdfast.drill.kinds import KINDS, Kind
from holdfast.errors import ConfigError, NotFoundError
from holdfast.model.evidence import Domain, Remedy
from holdfast.model.toml_lines import Problem, build, config_error, did_you_mean, load_toml

SCENARIO_SUFFIX = ".toml"


class Target(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is hit. At most one field; none: drawn by the seed among what the kind hits."""

    rank: int | None = None
    node: str = ""
    """A node's name, or `of_rank:N` for the node that rank N runs on."""
    random: Literal["", "rank", "node"] = ""


class When(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When it is hit, counted from the job's steady state (its attempt has saved a durable checkpoint)."""

    at_step: int | None = None
    """At the begin of this step, or of the first one after it."""
    steps_after: int | None = None
    """This many steps after the step at which the job was found steady."""
    after_s: float = 0.0
    """Seconds after the steady state."""


class Expect(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What must come of it. A field that is not set is not checked."""

    causes: tuple[str, ...] = ()
    """Rule ids of which the diagnosis must name one; `*` stands for anything."""
    domains: tuple[Domain, ...] = ()
    suspect: Literal["", "rank", "node", "none"] = ""
    """What the diagnosis must name: the rank that was hit, the node that was hit (or ran it), or nobody."""
    remedies: tuple[Remedy, ...] = ()
    """One of these must have been taken."""
    detect_s_max: float | None = None
    """Fault to finding; for hangs see `detect_steps_max`."""
    detect_steps_max: float | None = None
    """So many step times are allowed in addition to `detect_s_max`."""
    recover_s_max: float | None = None
    """Fault to proven recovery."""
    lost_steps_max: int | None = None
    attempt_goes_on: bool = False
    """The fault is reported, but the attempt that was hit is left running."""
    must_not_act: bool = False
    """Nothing may be restarted, stopped or fenced."""
    watch_s: float = 10.0
    """How long to look on when nothing is to happen."""
    job_completes: bool = False
    loss_matches: bool = False
    """The loss at the last step equals that of an undisturbed run with the same seed."""
    node_returns: bool = False
    """The node that was fenced must be back, repaired or replaced, before the drill is over."""


class JobNeeds(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The job that the drill brings up when none is named."""

    nodes: int = 2
    ranks_per_node: int = 1
    checkpoint_every: int = 10
    step_s: float = 0.1
    steps: int = 100_000
    """Enough never to end before the drill; `job_completes` scenarios set it."""
    checkpoints_on_node: bool = False
    """Save on the scratch file system of the first node instead of the job's folder."""
    checkpoints_on_shared: bool = False
    """Save on a small file system that all nodes share (Slurm lab) instead of the job's folder."""


class Scenario(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One drill."""

    name: str
    kind: str
    title: str = ""
    about: str = ""
    target: Target = Target()
    when: When = When()
    params: dict[str, Any] = {}
    expect: Expect = Expect()
    job: JobNeeds = JobNeeds()

    @property
    def definition(self) -> Kind:
        """The kind, with its reach and parameters."""
        return KINDS[self.kind]

    @property
    def settings(self) -> dict[str, Any]:
        """Parameters with the kind's defaults applied."""
        return {name: self.params.get(name, param.default) for name, param in self.definition.params.items()}


def read_scenario(text: str, file: str = "") -> Scenario:
    """Read one scenario.

    Raises:
        ConfigError: names file, line and the nearest right key, kind or parameter.
    """
    data = load_toml(text, file)
    scenario = build(Scenario, data, text, file)
    problems = _problems(scenario)
    if problems:
        raise config_error(problems, text, file)
    return scenario


def _problems(scenario: Scenario) -> list[Problem]:
    if scenario.kind not in KINDS:
        return [Problem(("kind",), f'there is no kind "{scenario.kind}"{did_you_mean(scenario.kind, KINDS)}')]
    kind = scenario.definition
    problems: list[Problem] = []
    for name in scenario.params:
        if name not in kind.params:
            hint = did_you_mean(name, kind.params) or "; it takes none"
            problems.append(Problem(("params", name), f'{scenario.kind} has no parameter "{name}"{hint}'))
    for name, param in kind.params.items():
        if scenario.params.get(name) is None:
            wrong = " is missing" if param.required else ""
        else:
            wrong = param.wrong(scenario.params[name])
        if wrong:
            problems.append(Problem(("params", name), f"params.{name}{wrong}"))
    target = scenario.target
    named = [word for word in (target.node, target.random) if word] + ([] if target.rank is None else ["rank"])
    if len(named) > 1:
        problems.append(Problem(("target",), "a target is a rank, a node or random, not several of them"))
    if kind.target == "node" and (target.rank is not None or target.random == "rank"):
        problems.append(Problem(("target",), f'{scenario.kind} hits a node: write node = ... or random = "node"'))
    if kind.target == "rank" and (target.node or target.random == "node"):
        problems.append(Problem(("target",), f'{scenario.kind} hits a rank: write rank = ... or random = "rank"'))
    if scenario.when.at_step is not None and scenario.when.steps_after is not None:
        problems.append(Problem(("when",), "at_step and steps_after exclude each other"))
    return problems


def shipped() -> dict[str, Scenario]:
    """The scenarios that come with Holdfast, by name, in the order of their names."""
    folder = resources.files("holdfast.drill") / "scenarios"
    found: dict[str, Scenario] = {}
    for entry in sorted(folder.iterdir(), key=lambda path: path.name):
        if entry.name.endswith(SCENARIO_SUFFIX):
            scenario = read_scenario(entry.read_text(encoding="utf-8"), entry.name)
            found[scenario.name] = scenario
    return found


def find(name_or_file: str) -> Scenario:
    """A shipped scenario by name, or the one in a file.

    Raises:
        NotFoundError: neither; names the nearest shipped one.
        ConfigError: the file is wrong.
    """
    known = shipped()
    if name_or_file in known:
        return known[name_or_file]
    path = Path(name_or_file)
    if path.suffix != SCENARIO_SUFFIX and not path.exists():
        raise NotFoundError(f'there is no drill "{name_or_file}"{did_you_mean(name_or_file, known)}')
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotFoundError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}", file=str(path)) from error
    return read_scenario(text, str(path))
