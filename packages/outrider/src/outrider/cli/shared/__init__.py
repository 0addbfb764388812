"""What commands have in common: options, settings from files, what they print and how they are interrupted."""
