"""What the agent writes to the directory, and what it reads from it."""
