"""Deterministic simulation: the real controller and engine over a simulated cluster, in virtual time.

For users it answers "what if" (`holdfast simulate`); for developers it finds bugs (`holdfast simulate fuzz`). One seed
is one run, to the byte, in every process and on every machine with the same Python. The way in::

    from holdfast.sim.options import SimOptions, changed, draw
    from holdfast.sim.run import simulate

    options = draw(seed)                     # a swarm's options; `options.lines()` prints every one
    result = simulate(options)               # -> record.SimResult
    result = simulate(changed(options, drop=("gpu-3",)))          # the same run without one planned fault
    result = simulate(options, engine=PlantedBug)                 # a subclass of decide.engine.Engine

What is in a result (`record.py`, every field documented there):

- `faults`: the whole plan, drawn before the run, each with id, time, kind, true cause and place; `truth`: what truly
  happened, in order (`record.WORDS` explains each word), with who did it and by which order;
- `entries()`: every event of the journal with its orders; `journal()`: the same as canonical bytes; `digest`;
- records at the end (`jobs`, `nodes`, `incidents`, `orders`), `final`: the scheduler's last view, `state`: the
  engine's snapshot, replayed from the journal;
- `refused`: events that the engine refused or that broke an invariant (each is a bug); `effects`: order id -> how often
  it changed the world; `converged` and `unrest`: did everything come to rest after faults had stopped;
- `ledgers`: per job where its wall time truly went.

Phases: faults happen for `fault_s`; then `calm` is written, `at_calm` is called, and everything must converge within
`converge_s`. Modules: `options`, `record` (results), `causes` (published counts), `faults` (the plan), `world`
(machines), `scheduler`, `training` (attempts), `ledger`, `orchestrator` and `repair_shop` (ports), `agents` (messages),
`operators` and `requests` (people), `breaking` (faults take effect), `store` and `control` (the controller and its
disk), `launcher` with `reports` and `cut` (`holdfast run`), `run`.
"""
