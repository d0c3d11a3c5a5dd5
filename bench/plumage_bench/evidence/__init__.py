"""What docs/evidence.md states: claims, the kept runs that they read, and verdicts computed from the numbers.

A claim names a file of docs/evidence, a figure in it and a target. `scripts/make_evidence.py` writes the page from
both; `make lint` fails when page, claims and files disagree. No verdict is written by hand.
"""
