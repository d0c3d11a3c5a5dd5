"""What the benchmarks of routing share: contenders, the search for the highest rate, report."""
