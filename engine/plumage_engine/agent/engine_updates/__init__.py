"""What the agent sends to the running engine: batching policy, learned tables, hot blocks."""
