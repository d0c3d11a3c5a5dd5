"""vLLM's surfaces as the plugin sees them, a module each: what is imported from vLLM, and what is held to be there.

Each module imports names of vLLM for the rest of the plugin and has `Surface` tables, the members of its classes that
the plugin relies on. `checks.missing` reports at start which of them are gone; the feature that needs them stays off.
`make check-vllm` compares the tables with the sources of a version that is not installed.
"""
