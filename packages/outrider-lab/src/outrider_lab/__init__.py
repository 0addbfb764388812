"""What speculation should gain, what it did gain, and whether it kept its promise."""
