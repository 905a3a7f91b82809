"""The dashboard: a page over the telemetry of runs, served to this machine's user alone."""
