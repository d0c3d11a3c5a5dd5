"""Hashes of prompts: over bytes, as the directory keys them, and over tokens, as batching compares them."""
