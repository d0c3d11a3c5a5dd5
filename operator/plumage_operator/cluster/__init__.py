"""The only part of the operator that talks to the API server."""
