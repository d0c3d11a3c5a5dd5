"""HotPrefix's host tier inside vLLM's OffloadingConnector: what is worth the copy, what stays, what comes back early.

`spec` is what vLLM is told to load, `host` what it gives, `idle` what it gives where vLLM has moved what that needs;
`manager` decides about stores, over `residents` and `heats`; `promoter` brings hot prefixes up while requests decode;
`install` ties it to a live scheduler; `below` puts a disk under it, `tiered` says what goes there. The algorithms are
`plumage.tiering`'s and `plumage.hotness`'s.
"""
