"""An InferencePool as the settings of its processes. No I/O, no clock."""
