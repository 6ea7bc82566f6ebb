"""The voice agent: a LiveKit worker, its tools on the command line, and a speech stack that needs no key.

Above: ``python -m agent``. Below: the ``memory`` package, which never imports this one.
"""
