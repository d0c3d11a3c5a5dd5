"""The folder of a running pool: its lock, its files, and what restores and removes them."""
