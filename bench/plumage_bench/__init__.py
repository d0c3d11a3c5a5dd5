"""Benchmarks. Each prints a table, writes JSON and a plot, and ends with one line of figures."""
