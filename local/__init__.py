"""Run the whole gateway on a laptop with one command: emulated AWS, and a stand-in model if no other model is available."""
