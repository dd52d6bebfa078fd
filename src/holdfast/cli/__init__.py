"""The command line: the only floor that wires adapters to ports. One module per command group."""
