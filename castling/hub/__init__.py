"""Trained runs as networks of Hugging Face's transformers: what `AutoModel` and `pipeline` make of a published folder.

Nothing here is imported before transformers is.
"""
