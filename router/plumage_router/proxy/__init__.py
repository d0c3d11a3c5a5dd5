"""One completion request on its way to an engine and back: attempts, retries, waiting."""
