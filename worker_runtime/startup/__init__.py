"""How a worker process begins and ends, before and after the job."""
