"""The replicas of a pool: membership, health, breakers, engine keys."""
