"""A second attack on the server, written from its documents alone: cases with the answers they must get."""
