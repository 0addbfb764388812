"""Recurrent layers in torch operations, row by row (``outrider.cache.states``)."""
