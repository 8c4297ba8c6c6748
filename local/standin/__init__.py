"""A deterministic program behind OpenAI's wire format, for when no model is at hand.

It is not a language model and never pretends to be one: it answers with the sentence of the conversation or of the
retrieved documents that matches the question best. It calls a tool if the question clearly asks for
one, and says so if nothing matches.
"""
