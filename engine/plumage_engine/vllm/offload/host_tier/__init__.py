"""Host memory as a tier.

`store_manager` decides which chunks are stored, `residents` which are evicted for them, and `chunk_hotness` how hot
each is. `copy_worker` copies where there is no GPU. `memory_check` compares the configured size with the machine's.
"""
