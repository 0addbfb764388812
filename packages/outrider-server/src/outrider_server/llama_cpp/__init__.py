"""llama.cpp's own endpoints, for its clients: the same service under other names."""
