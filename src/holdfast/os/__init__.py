"""What any room asks of the operating system: programs within limits, daemons, files written as a whole."""
