"""What a scheduler has given to a job: from environment variables and files to hosts and slots."""
