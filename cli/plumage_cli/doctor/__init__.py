"""The checks of `plumage doctor`, of this machine and of a cluster. Each finding says what to do about it."""
