"""Labs: real schedulers on one machine, to break on purpose.

`slurm_lab.SlurmLab` starts a real Slurm (slurmctld, slurmd per node, munge; slurmdbd when asked) from distribution
packages, without systemd and without containers. `keeper` is the process that everything in it descends from,
`machine` the first process of a node, `network` its wires, `slurm_conf` the configuration (pure), `settings` what was
asked for and where it lies. Used by the command line, drills, benchmarks and tests.
"""
