"""The allocation of a scheduler: reads environment variables and files, and gives hosts and slots."""
