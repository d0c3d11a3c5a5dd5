"""The routes under /v1/plumage.

`api_server` answers them in vLLM's API server process; `engine_core` answers its calls in the engine core.
`block_record` has the content of snapshots, `fingerprint` identifies learned tables, `plugin_metrics` exports counters.
`refusal` is the error of both.
"""
