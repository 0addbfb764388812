"""Published heads: import and export."""
