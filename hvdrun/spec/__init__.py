"""A job as values: hosts, limits, environment, command.

Words of a user come in, a `JobSpec` goes out. Nothing runs here.
"""
