"""`plumage demo`: a pool under a real client's load, an engine killed on the way, and what prefix routing bought."""
