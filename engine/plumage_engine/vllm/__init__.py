"""The plugin inside an unmodified vLLM: FEATHER's queue, the order of eviction, the host tier, the fleet's surface.

Importing this package imports nothing of vLLM. Each surface of vLLM that we touch has one small module in `compat`.
docs/reference/vllm-plugin.md explains how to switch each feature on.
"""
