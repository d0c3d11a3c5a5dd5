"""OpenAI's API, vLLM's metrics and health, and the fleet's own routes."""
