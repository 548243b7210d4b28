"""Where the workers of a job are, and which of them hold up the others: the launcher's part, and `hvdrun stacks`."""
