"""HTTP calls to the agent's own engine, and what its metrics page says."""
