"""The router's side of the directory: it reads the logs of all replicas into one table in memory."""
