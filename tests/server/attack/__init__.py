"""A second attack on the server, written from its documents alone: tables of cases, each with the answer it must get."""
