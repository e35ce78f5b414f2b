"""Pure state machines: no clock, thread or I/O; ``now`` is an argument."""
