"""The agent's HTTP routes, its metrics page and its report for the operator."""
