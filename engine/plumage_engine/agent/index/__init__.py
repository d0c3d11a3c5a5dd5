"""An in-memory index of what the engine caches. No I/O except for the checkpoint file."""
