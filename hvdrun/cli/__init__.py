"""`hvdrun` on the command line: reads words and runs a job, or shows what it would do."""
