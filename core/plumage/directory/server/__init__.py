"""Starts the directory server: for local mode, and as the process of a pod."""
