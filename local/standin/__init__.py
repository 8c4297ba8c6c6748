"""A deterministic program behind OpenAI's wire format, for use when no model is available.

It is not a language model and does not pretend to be one. It answers with the sentence of the conversation or of the retrieved
documents that matches the question best. If the question clearly asks for a tool, it calls the tool. Without a match, it says so.
"""
