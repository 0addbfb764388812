"""Further draft sources and beam search for Outrider."""
