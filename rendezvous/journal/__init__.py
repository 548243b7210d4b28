"""The server's journal: what it has decided, on disk, so that a server that is started again continues the job."""
