"""The Kopf operator: an `InferencePool` becomes Deployments, Services and what they need, and stays that way.

Three rings. Pure: `plan` and what it rests on (`children`, `conditions`, `diagnosis`, `status`, `drift`). Thin I/O:
`cluster`. Thin triggers: `triggers`, `reconciler`, `__main__`.
"""
