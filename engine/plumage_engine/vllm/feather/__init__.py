"""FEATHER in vLLM.

`queue_adapter` replaces vLLM's queue, `waiting_order` maps vLLM's requests to a batching policy of core, and
`row_order` sorts the rows of the running batch.
"""
