"""`hvdrun timeline FILE`: reads the timeline of a job, and says who waited for whom."""
