"""A model's answer, parsed into thinking, text and tool calls by the markers of its family."""
