"""The disk below host memory."""
