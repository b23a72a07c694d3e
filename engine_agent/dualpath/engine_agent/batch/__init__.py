"""Pure: which turns, and how many of their tokens, go into the next forward batch."""
