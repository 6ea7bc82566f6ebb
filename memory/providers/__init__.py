"""Adapters to models: the local embedder. Importing this package loads none of them."""
