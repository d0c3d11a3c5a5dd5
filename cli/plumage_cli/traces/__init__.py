"""Request traces: fetch with a checksum, convert to Mooncake's format, describe.

Mooncake's format is JSONL with one request per line, in order of arrival. `timestamp` is in ms, `input_length` and
`output_length` are in tokens. `hash_ids` has a number for each block of 512 prompt tokens; equal numbers mean equal
prefixes up to the end of the block.
"""
