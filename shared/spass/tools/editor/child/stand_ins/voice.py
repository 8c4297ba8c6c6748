"""For ``aider.voice``: Aider records speech. It needs a sound device only when it does."""
