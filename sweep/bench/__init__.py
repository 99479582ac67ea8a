"""The benchmark worker: prompts, the streaming client, and what it records."""
