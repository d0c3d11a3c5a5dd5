"""The OpenAI-compatible router in front of a pool."""
