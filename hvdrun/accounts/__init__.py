"""What the time of a job was spent on: its history, the accounts of its workers, and the report of both."""
