"""Fleets of simulated engines in virtual time, which several benchmarks share."""
