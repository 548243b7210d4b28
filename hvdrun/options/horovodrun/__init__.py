"""`horovodrun`: Horovod's command line, read into the values of hvdrun's own table of options."""
