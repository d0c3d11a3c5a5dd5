"""The routes under /v1/plumage: the API server's half, the engine core's half, and what they report."""
