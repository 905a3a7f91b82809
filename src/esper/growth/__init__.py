"""Growing networks: slots, seeds and their lives, populations, export."""
