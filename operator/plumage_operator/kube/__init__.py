"""The client of the API server, its errors and credentials."""
