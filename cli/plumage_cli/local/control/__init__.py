"""The control socket of a running pool: one JSON object per line each way."""
