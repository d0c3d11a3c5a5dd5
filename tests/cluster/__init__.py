"""A Kubernetes cluster for tests, without Docker, runc or a registry. README.md says what it is and what it is not."""
