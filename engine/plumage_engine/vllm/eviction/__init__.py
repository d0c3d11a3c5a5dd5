"""The order in which vLLM's block pool evicts cached blocks."""
