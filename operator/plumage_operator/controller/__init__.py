"""Watches changes, plans what to do about them, and does it."""
