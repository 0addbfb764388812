"""What clients may send, field by field, and what they get. Unknown fields are refused, never ignored."""
