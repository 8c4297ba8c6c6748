"""Foreign agents: find or install what runs them, and run them. No deployed function imports this."""
