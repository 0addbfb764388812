"""What each kind of draft learns."""
