"""What an LLM call gets to see: token budget, truncation, the memory block, prompts. Above: service, plugin."""
