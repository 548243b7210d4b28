"""The command line of `hvdrun`: it runs a job, or prints a page."""
