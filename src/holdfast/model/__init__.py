"""The frozen nouns that every floor shares: cluster, evidence, events, orders, policy, records, wire.

Nothing here reads a clock, a file or the environment; times are Unix seconds (float) unless a name says otherwise.
"""
