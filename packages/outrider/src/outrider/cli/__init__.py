"""The ``outrider`` command."""
