"""The knowledge graph on FalkorDB, in Graphiti's layout. Nothing here is imported before it is needed."""
