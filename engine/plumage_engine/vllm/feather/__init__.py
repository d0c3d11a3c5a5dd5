"""FEATHER in vLLM.

`queue_adapter` replaces vLLM's queue, `request_order` maps vLLM's requests to a batching policy of core, `step_times`
measures the policy's reward, and `batch_order` sorts the rows of the running batch.
"""
