"""The whole scheduler under faults in virtual time: a seeded world, a checker of laws, and planted bugs."""
