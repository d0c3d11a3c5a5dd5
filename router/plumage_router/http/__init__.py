"""HTTP on sockets: client connections, upstream connections, parsing, bounds, errors. Knows no pool."""
