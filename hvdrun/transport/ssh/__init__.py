"""The transport over ssh. Only this package imports paramiko."""
