"""A running pool: its supervisor, replicas and membership file."""
