"""The benchmarks that `plumage bench NAME` runs, by name. One with helpers of its own is a folder."""
