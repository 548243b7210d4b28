"""torch's process groups: formed, watched, aborted."""
