"""The rehearsal of a deployment in an emulator of its own: ``make rehearse``."""
