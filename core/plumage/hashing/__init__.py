"""Hashes of prompts: over bytes as keys of the directory, and over tokens to compare prompts in a batch."""
