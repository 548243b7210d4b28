"""Runs Python functions on the workers of a job: `hvdrun.run()` and `hvdrun.Cluster`."""
