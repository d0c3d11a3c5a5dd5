"""The content of docs/evidence.md: claims, the kept runs that they read, and verdicts computed from the figures.

A claim names a file of docs/evidence, a figure in it and a target. `scripts/make_evidence.py` writes the page from
both. `make lint` fails if page, claims and files disagree. No verdict is written by hand.
"""
