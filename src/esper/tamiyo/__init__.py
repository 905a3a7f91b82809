"""The decision-maker: it looks at how a host's training goes and chooses what to grow."""
