"""One process of a pool: its start, restarts, log and end."""
