"""Adapters of the ports: Redis and its embedded server, SQL, and stores in memory. ``wiring`` alone chooses."""
