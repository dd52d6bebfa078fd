"""Pure decisions of the launcher, driven by `holdfast run` in real time and by the simulation in virtual time.

Every core takes one frozen report at a time, with the time in it, and returns a list of frozen asks. Whoever drives a
core carries the asks out in their order. No module here reads a clock, a file, a socket or the environment.

- `lease`: the right to have ranks running. `Lease` counts it, `LeaderLease` renews the leader's own.
- `follower`: what a node that does not lead does about its leader's asks, silence and end.
- `fence`: when an attempt may start, behind the epoch that is raised for it.
- `presence`: what the leader knows of its followers' connections, grants and silence.
- `shutdown`: when the leader leaves its allocation, and with which exit code.
"""
