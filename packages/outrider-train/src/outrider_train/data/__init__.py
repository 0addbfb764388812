"""The documents that drafts are trained on."""
