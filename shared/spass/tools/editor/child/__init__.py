"""The code that runs in the editor's child process only. The gateway never imports it, and it imports nothing of the gateway.

``python -m spass.tools.editor.child <engine>`` reads an edit from standard input and writes lines of JSON to standard output.
"""
