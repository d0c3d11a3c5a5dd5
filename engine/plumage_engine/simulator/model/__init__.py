"""The simulated model: its tokenizer, and answers of random words."""
