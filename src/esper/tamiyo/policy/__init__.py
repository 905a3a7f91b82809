"""What the controller sees, what it may do, and the network that decides."""
