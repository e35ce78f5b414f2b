"""Our cost beside that of other libraries, for the same work, in one interleaved run: `python -m benchmarks --help`."""
