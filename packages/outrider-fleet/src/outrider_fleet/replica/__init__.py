"""A replica: one engine behind a socket."""
