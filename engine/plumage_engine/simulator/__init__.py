"""An engine without a GPU or a model, honest about being one: same API, metrics and KV events; its device costs time.

`core.SimEngine` is the engine itself, without clock or network; `virtual.VirtualFleet` runs many in virtual time;
`python -m plumage_engine.simulator` serves one on the wall clock. `device` states what time costs, and why.
"""
