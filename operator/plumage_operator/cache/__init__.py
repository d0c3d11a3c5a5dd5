"""The operator's copy of the cluster's objects, and what keeps the copy complete."""
