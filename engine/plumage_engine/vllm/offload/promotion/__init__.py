"""Copies from host memory to the device before a request needs them."""
