"""Tool calls that survive drafts: seeded requests for any OpenAI-compatible endpoint, and judges of its answers."""
