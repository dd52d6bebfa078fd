"""The in-allocation launcher, `holdfast run`: starts a job's ranks, watches them, restarts them in place.

One launcher process runs on every node of an allocation. The one with node rank 0 is the leader: it holds the
job's engine and journal and tells the others (followers) what to do over authenticated TCP. `holdfast.cli.run`
is the way in; `leader` and `follower` are the two programs; `node` is what both do on their own node. The leader starts
attempts (`attempts`), follows their ranks (`observer`) and nodes (`launcher_nodes`), and leaves (`leaving`); what it
decides stands in `core`. `step` supervises a Slurm step instead of ranks, with the same leader.
"""
