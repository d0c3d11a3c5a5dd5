"""A disk below host memory.

- `tiered_manager` decides what is written to it.
- `disk_tier` keeps its chunks, and `transfers` copies them in threads.
- `slot_file` is the file.
- `options` reads its settings, and `setup` makes all of these.
"""
