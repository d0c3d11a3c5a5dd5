"""The operator's log, metrics and health pages."""
