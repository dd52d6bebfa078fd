"""Slurm as an orchestrator.

`output` and `views` read what its tools print, `commands` writes what they are asked, `client` runs them.
"""
