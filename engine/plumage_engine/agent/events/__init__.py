"""The engine's KV events: sockets, decoding, order and replay."""
