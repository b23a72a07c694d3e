"""Pure: who gets which turn and which side reads. Looks at a snapshot, answers with a decision and its reasons."""
