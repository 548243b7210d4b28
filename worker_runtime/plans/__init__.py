"""Plans that all ranks compute alike, from the same values: no IO, clock, threads or framework."""
