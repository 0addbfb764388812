"""Programs that attack a whole server for a given time: ``make fuzz-http``, ``make fuzz-schema``, ``make soak``."""
