"""The laptop: the whole gateway in one command, with emulated AWS and, when nothing better answers, a stand-in model."""
