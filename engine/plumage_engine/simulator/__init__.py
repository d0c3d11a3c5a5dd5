"""A simulated engine: it needs no GPU and no model, and its cost model says how long each step takes.

It has vLLM's API, metrics and KV events.
engine: the engine itself, without clock or network; `device` is the cost model, with its reasons.
events: what is cached, and the KV events. model: tokenizer and answers. `job`: one request with its answer.
`runner` steps the engine on the wall clock, `metrics` reports, `http` serves, `__main__` runs one engine.
"""
