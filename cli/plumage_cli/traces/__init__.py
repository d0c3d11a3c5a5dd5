"""Request traces: fetched with a checksum, converted to Mooncake's form, described.

Mooncake's form is JSONL, one request a line, in order of arrival: `timestamp` in ms, `input_length` and `output_length`
in tokens, `hash_ids`, one number for each block of 512 prompt tokens; equal numbers mean equal prefixes up to there.
"""
