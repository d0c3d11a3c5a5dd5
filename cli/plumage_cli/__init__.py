"""The `plumage` command."""
