"""The choice of a replica for a request, and the records of these choices."""
