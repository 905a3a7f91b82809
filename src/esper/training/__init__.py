"""Training a controller: the training loop, run folders, resuming, trials."""
