"""(previous, current) snapshots → derived facts. Pure: no clock, no I/O; values in, values out."""
