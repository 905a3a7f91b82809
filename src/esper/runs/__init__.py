"""Runs: started, resumed, read and used; what the command line does, as calls."""
