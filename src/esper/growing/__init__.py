"""Growing one model: `esper.grow`."""
