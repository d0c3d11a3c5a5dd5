"""Conditions and status of pools: what the cluster shows, and the cause where something fails. Pure."""
