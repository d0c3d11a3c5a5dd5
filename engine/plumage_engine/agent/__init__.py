"""The agent beside each engine: it indexes the cache, publishes it to the directory, warms up and drains.

events: reads the engine's KV events in order. index: the cached blocks and their chunks.
directory: publishes chunks, reads the pool's hotness. engine: HTTP calls to the engine, and its load.
engine_updates: sends policy, learned tables and hot blocks to the engine. warmup: computes hot prefixes of peers.
lifecycle: state, warm-up task, checkpoints and drain.
`agent` connects them, `http` serves them, `__main__` runs them. `drain` is the pod's preStop hook,
`probe` a probe of the engine.
"""
