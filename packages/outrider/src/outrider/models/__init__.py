"""Models: the Llama family, a table model for tests, and what the engine asks of any of them."""
