"""Whether an answer is right: generated programs against their tests, in a jail, and numbers against a reference."""
