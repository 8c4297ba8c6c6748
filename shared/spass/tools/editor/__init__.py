"""The editor: a coding engine in a child process that turns texts and a message into changed texts."""
