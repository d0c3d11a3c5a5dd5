"""Several pools behind one port: the router of an InferenceGateway. Each pool has its own fleet and policy."""
