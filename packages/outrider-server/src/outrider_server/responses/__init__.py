"""OpenAI's Responses API: the same service as the chats', without anything kept between requests."""
