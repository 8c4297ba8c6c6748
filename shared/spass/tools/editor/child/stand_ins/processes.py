"""For ``psutil``: Aider looks for the shell that started it before it runs a command. An edit runs none."""
