"""Embeddings by the target, in the words of OpenAI and Ollama."""
