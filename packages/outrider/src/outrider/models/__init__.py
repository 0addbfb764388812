"""Models: the Llama family, a table model for tests, and the protocol that the engine needs."""
