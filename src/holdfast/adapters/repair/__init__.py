"""Repairs that no scheduler does: the site's own programs, EC2, and what has to be done after a replacement.

`ports.Repair`, wired by `cli/repairs.py` from `[repair]` of holdfast.toml; asked before the orchestrator, whatever
kind of cluster it is. The pieces know each other only through `words.py` (names of nodes, how outcomes are called).
"""
