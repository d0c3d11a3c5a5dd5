"""What the simulated engine caches, and its KV events: block hashes, a record with token ids, the publisher."""
