"""Recall: normalisation, the per-user index and its ranking, snapshots, prefetch, the recall host and its client.

Importing this package loads nothing: a call's job process holds no numpy, no model and no index. Import the module
you need (``memory.retrieval.index`` and what it uses are plain, in-process and without IO).
"""
