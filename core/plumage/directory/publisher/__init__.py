"""The agent's side of the directory: it writes the snapshot, log and heartbeat of one replica."""
