"""The embedded cluster: a small gang scheduler with real processes on this machine as nodes.

It stands for Slurm or Kubernetes in the demo, the drills, the lab and the tests, and it knows nothing of recovery.
"""
