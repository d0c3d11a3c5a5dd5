"""HotPrefix's host tier inside vLLM's OffloadingConnector, with a disk below it and promotion to the device.

vLLM loads `spec`; `selective_spec` makes the tier, or `fallback` where this vLLM lacks what it needs; `install` ties it
to a live scheduler. `host_tier` stores chunks in host memory, `disk_tier` on a disk, `promotion` copies them to the
device before a request needs them. The algorithms are in `plumage.tiering` and `plumage.hotness`.
"""
