"""A job as frozen values: its hosts, limits, environment and command. Nothing here starts a process."""
