"""What may be stored and for how long: redaction on the way in. Above: service, recorder. Below: ports, models."""
