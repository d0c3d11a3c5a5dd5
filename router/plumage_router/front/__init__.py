"""Several pools behind one port: an InferenceGateway's router. Each pool keeps its own fleet, policy and directory."""
