"""Training jobs that ship with Holdfast, for the demo, drills and tests.

`gpt_torch` is a small data-parallel GPT; `counter` is the same job without torch, for runs by the
hundred. Both are started as scripts, one process per rank, and use nothing of Holdfast but
`holdfast.telemetry` and `holdfast.checkpoint`, as a user's script does.
"""
