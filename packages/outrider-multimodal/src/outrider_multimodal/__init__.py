"""Speech, images and encoder-decoder models for Outrider."""
