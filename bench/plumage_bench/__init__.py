"""Benchmarks: each prints a table, writes JSON and a plot, and closes with one line of figures."""
