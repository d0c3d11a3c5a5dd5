"""`plumage demo`: a pool under the load of a real client, with an engine killed, compared with a baseline."""
