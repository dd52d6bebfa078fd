"""Is this environment fit for a long run? Measures nodes, compares, finds the odd one, remembers.

Above adapters, below the agent (whose `validating` step uses it) and the report (which draws it). `registry` lists the
suites; each *step* of one runs in a process of its own with a time limit (`running`, `step`); `baselines` judge what
was measured; `fleet` and `worker` do it on many nodes and `pairing` names the one at fault; `history` remembers.
"""
