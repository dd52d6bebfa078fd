"""Judgement without I/O: from events to orders. `engine.Engine` is the way in; nothing here reads a clock or a file."""
