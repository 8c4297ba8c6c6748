"""For ``requests``: Aider fetches price lists. The gateway passes in what an edit needs, so the child has no HTTP client."""
