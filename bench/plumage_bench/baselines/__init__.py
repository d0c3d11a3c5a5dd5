"""The baselines: other products' routing, textbook caches, other orders of a batch.

They are not part of the product. A setting names them as it names a user's own policy, by `package.module:Class`
(docs/how-to/own-policy.md).
"""
