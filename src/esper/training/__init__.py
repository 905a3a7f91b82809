"""Training a controller: the loop, run folders, resuming, trials."""
