"""Growing models: `esper.grow` and what it is made of."""
