"""FEATHER in vLLM: the order of admission, and the order of rows in the running batch."""
