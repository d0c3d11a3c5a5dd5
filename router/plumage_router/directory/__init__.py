"""The link to the shared directory: cache contents, loads, learned estimates, hotness."""
