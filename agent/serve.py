"""The worker as LiveKit's command line looks for it: a module with a ``server``. Above: commands.worker. Below: worker.

``python -m livekit.agents start agent/serve.py`` is ``python -m agent start``. Job processes never import it.
"""

from __future__ import annotations

from agent.settings import load
from agent.worker import Worker

server = Worker(load())
