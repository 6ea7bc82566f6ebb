"""The image's HEALTHCHECK: exit code 0 while the worker's /health says that it can hold calls."""

import os
import sys
import urllib.request

TIMEOUT_S = 4.0


def main() -> int:
    port = os.environ.get("AGENT_HEALTH_PORT") or "8081"
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=TIMEOUT_S) as answer:
            sys.stdout.write(answer.read(2_000).decode(errors="replace"))
    except (OSError, ValueError) as error:  # refused, late, or any code but 200
        sys.stderr.write(f"unhealthy: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
