"""The dashboard: a web page that shows the telemetry of runs to the user who started it."""
