"""`hvdrun doctor`: looks at the hosts of a job before it starts, and names what is wrong."""
