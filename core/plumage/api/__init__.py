"""The kinds that a person writes in a manifest, by version."""
