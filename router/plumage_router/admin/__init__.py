"""Every route that is not a completion: health, metrics, models, status, explanations."""
