"""The Kopf operator. Local mode needs none of it; it grows here with the Kubernetes part."""
