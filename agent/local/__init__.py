"""Speech and a thinker that need no key and no network.

``models`` (blocking, heavy) runs in the speech host only; ``client`` talks to that host; ``stt``, ``tts`` and
``thinker`` are what an ``AgentSession`` is given; ``audio`` is a microphone and a speaker without a room.
Nothing is imported here, so that a process pays only for the parts it uses.
"""
