"""A deterministic program behind OpenAI's wire format, for when no model is at hand.

It is no language model and never pretends to be one: it answers with the sentence of the conversation, or of what was retrieved,
that matches the question best; calls a tool when the question plainly asks for one; and says so when nothing matches.
"""
