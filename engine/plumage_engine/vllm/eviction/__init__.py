"""The order in which vLLM's block pool evicts cached blocks.

`ordered_pool` ties an order to vLLM's live pool, `eviction_order` chooses the blocks, `spare_copies` finds duplicates,
and `free_list` moves blocks within vLLM's free list.
"""
