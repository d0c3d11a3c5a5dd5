"""The agent beside each engine: from KV events to the directory, and the engine's citizen in the fleet.

events (live, sequence, wire) → index (block, tally, heat, checkpoint) → holdings (throttle) → the directory's writer.
Beside that: load, engine, warmup, hotness. `agent` puts them together, `app` serves, `__main__` runs it.
"""
