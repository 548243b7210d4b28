"""hvdrun's supervisor on a host: starts, watches and ends its workers."""
