"""What a notebook shows of a finished request: a table of its steps, a plot, and the draft tree of a step."""
