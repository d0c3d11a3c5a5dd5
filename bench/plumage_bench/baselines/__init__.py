"""What Plumage is compared with: other products' routing, textbook caches, other orders of a batch.

They are no part of the product. They plug in as a user's own policies do, by `package.module:Class` in place of a
name (docs/how-to/own-policy.md)."""
