"""The way to an agent on another machine: an ssh connection. Nothing outside this package knows paramiko."""
