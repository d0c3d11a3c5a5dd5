"""The plugin inside an unmodified vLLM.

`plugin`, `scheduler`, `endpoints` and `offload.spec` are its entry points; `features` switches each feature on.
`feather` orders admission, `eviction` orders the block pool, `offload` adds host memory and disk, `routes` serves
/v1/plumage, and `compat` names what is used of vLLM.

Importing this package imports nothing of vLLM. docs/reference/vllm-plugin.md explains how to switch each feature on.
"""
