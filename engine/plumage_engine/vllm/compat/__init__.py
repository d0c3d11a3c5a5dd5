"""vLLM's surfaces as the plugin sees them, a module each: what is imported from vLLM, and what is held to be there.

Each module imports names of vLLM for the rest of the plugin and has `Surface` tables, the members of its classes that
the plugin relies on. `checks.missing` tells at start which of them are gone, and the feature that needs them stays off;
`sources` tells it of a version that is not installed, of what `reads` lists, which no start can look at, and of what we
call and construct (`calls`).
"""
