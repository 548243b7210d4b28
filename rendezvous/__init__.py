"""Who is in a job, and which number each has."""
