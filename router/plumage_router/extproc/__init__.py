"""The endpoint picker: chooses replicas for an Envoy proxy, which then carries requests and answers itself."""
