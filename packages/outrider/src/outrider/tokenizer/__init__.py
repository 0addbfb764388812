"""Text to token ids and back: tokenizer, incremental detokenizer and chat templates."""
