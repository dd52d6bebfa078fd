"""The agent of a node: reads its kernel log, beats, and runs what the controller asks of the node."""
