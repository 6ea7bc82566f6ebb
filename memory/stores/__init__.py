"""Adapters of the ports: Redis and its embedded server, SQL, and stores in memory. Only ``wiring`` chooses among them."""
