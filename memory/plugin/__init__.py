"""The LiveKit plugin: memory for any ``AgentSession`` and ``Agent``.

::

    from memory.plugin import attach
    ...
    session = AgentSession(...)
    memory = attach(session, agent, ctx)
    await session.start(agent=agent, room=ctx.room)

``attached`` puts the parts together; ``turns`` makes entries of what the session reports, ``recall`` feeds the LLM,
``caller`` finds out whose call it is; ``memory.heard`` and ``memory.recorder`` are the parts below. Above: the user's
program, agent. Importing this opens no thread, socket or file, and loads no model, index or SQL.
"""

from memory.plugin.attached import AttachedMemory, attach

__all__ = ["AttachedMemory", "attach"]
