"""What a model writes, taken apart: thinking, text and tool calls, by the markers of its family."""
