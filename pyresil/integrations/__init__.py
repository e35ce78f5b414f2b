"""Other people's frameworks and clients; each module imports its own, and only that."""
