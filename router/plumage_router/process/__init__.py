"""The process around the requests: memory, background tasks, files that are read again."""
