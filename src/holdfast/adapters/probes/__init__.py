"""Checks of a node's health: what is read, by which tool, and what of it is a problem.

`checks.CHECKS` lists every check and `checks.SOURCES` every reading; `rounds.Looker` runs them, for the agent's rounds
and for `holdfast check`. What can hang runs in a process of its own: `reader` (files and NVML) or `tools`.
"""
