"""Model files: found by name, fetched, converted, checked and loaded."""
