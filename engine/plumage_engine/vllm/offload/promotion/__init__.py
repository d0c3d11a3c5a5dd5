"""Promotion: copies of prefixes from host memory to the device before a request needs them.

- `promoter` plans and runs the copies.
- `candidates` finds hot chunks, and `lookahead` those of waiting requests.
- `device_blocks` takes and places blocks.
- `connector_hooks` ties all of it to vLLM's connector.
"""
