"""What a host learns: the data that comes with the package."""
