"""What the engine writes down: one turn (`turn`), and the deeds by which it changes a job, a node or an incident.

No other module of `decide` writes a field of a record (`tests/test_style.py`). A deed that takes the turn marks what it
changes, so that the journal projects it. Called by the flows; the time is the event's.
"""
