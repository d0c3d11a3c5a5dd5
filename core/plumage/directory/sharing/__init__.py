"""State that routers and agents of a pool share: work in flight, learned state and hotness."""
