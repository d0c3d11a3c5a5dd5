"""The parts of vLLM that the plugin uses, a module for each surface.

Each module imports names of vLLM for the rest of the plugin. Its `Surface` tables list the members of vLLM's classes
that the plugin needs. `checks.missing` reports at start which are missing; the feature that needs them stays off.
`make check-vllm` compares the tables with the sources of a version that is not installed.
"""
