"""Views of a finished request in a notebook: a table of steps, a plot, and the draft tree of a step."""
