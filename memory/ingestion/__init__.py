"""What happens to turns after they are durable: from the log into the archive."""
