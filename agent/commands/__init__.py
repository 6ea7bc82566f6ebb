"""The commands of ``python -m agent``, one module each, and what they share.

Each has ``run(arguments) -> int``, the exit code: 0 done, 1 it did not work out, 2 what was asked for is wrong or
can't be done here, 75 (``download-files``) nobody answers where files would be fetched from, 128 + n ended by signal n.

Above: agent.cli. Below: models, assistant, settings, agent.local, memory.
"""
