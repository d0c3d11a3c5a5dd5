"""What one request says: JSON, allowed fields, rendered prompt, token usage, quarantine. No sockets."""
