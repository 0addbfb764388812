"""Schemas of requests and responses, field by field. Unknown fields are refused, never ignored."""
