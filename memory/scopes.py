"""Whose a session is: every use of a session goes through here, so that nothing crosses org, agent or user.

Above: service. Below: ports, models.
"""

from __future__ import annotations

from dataclasses import dataclass

from memory.errors import InvalidIdentity, SessionOwnership
from memory.limits import ID_CHARS_MAX
from memory.models import Scope
from memory.ports import SessionState, SessionStore


@dataclass(frozen=True, slots=True)
class Scopes:
    """The scopes of one organisation's agent."""

    org_id: str
    agent_id: str

    def of_user(self, user_id: str) -> Scope:
        """A user's scope.

        Raises:
            InvalidIdentity: no id, or one that can't be a key.
        """
        return Scope(org_id=self.org_id, agent_id=self.agent_id, user_id=user_id)

    def of_session(self, session_id: str) -> Scope:
        """The scope of a session of which nobody knows whose it is."""
        return Scope(org_id=self.org_id, agent_id=self.agent_id, user_id=session_id, kind="session")

    async def claim(self, sessions: SessionStore, session_id: str, user_id: str | None) -> SessionState:
        """Whose session it is, from now on if it is new; extends its life.

        Raises:
            InvalidIdentity, SessionOwnership, StoreUnavailable.
        """
        _check_id(session_id)
        if user_id:
            return await sessions.claim(session_id, self.of_user(user_id))
        found = await sessions.find(session_id)
        if found is None:
            return await sessions.claim(session_id, self.of_session(session_id))
        self.check(found.scope)
        return found

    async def find(self, sessions: SessionStore, session_id: str, user_id: str | None) -> SessionState:
        """Whose session it is; of one that the session layer doesn't know, whose it would be. Creates nothing.

        Raises:
            InvalidIdentity, SessionOwnership, StoreUnavailable.
        """
        _check_id(session_id)
        wanted = self.of_user(user_id) if user_id else self.of_session(session_id)
        found = await sessions.find(session_id)
        if found is None:
            return SessionState(wanted)
        if user_id and found.scope != wanted:
            raise SessionOwnership("This session belongs to another user; ask for one of this user's.")
        self.check(found.scope)
        return found

    def check(self, scope: Scope) -> None:
        """Raises SessionOwnership where the scope is another organisation's or agent's."""
        if (scope.org_id, scope.agent_id) != (self.org_id, self.agent_id):
            raise SessionOwnership("This memory belongs to another organisation or agent; use its own service.")


def _check_id(session_id: str) -> None:
    if not session_id or len(session_id) > ID_CHARS_MAX:
        raise InvalidIdentity(f"session_id: must have 1 to {ID_CHARS_MAX} characters.")
