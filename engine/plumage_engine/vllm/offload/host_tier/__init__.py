"""Host memory: which chunks are stored in it, which leave, how hot they are, and who copies."""
