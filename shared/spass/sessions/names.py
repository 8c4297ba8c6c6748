"""The names that a user's client gives to sessions. The item of a name contains the id of the newest session of its chain.

The transactions that create and compact a session write the item, and the deletion of the session removes it.
"""

import re
from dataclasses import dataclass
from typing import Final

from spass.core.errors import InvalidRequest, SessionNotFound
from spass.core.ids import CLIENT_ID, AgentName, SessionId, UserId, id_pattern
from spass.sessions.session import Session
from spass.store import keys
from spass.store.tenant_store import TenantStore
from spass.store.writes import ITEM_ABSENT, Condition, Delete, Equals, Put

_ID_START: Final = "ses_"  # a client's name for a session does not begin so


def parse_session_id(wanted: str) -> SessionId | None:
    """Return the id of a session, or None if ``wanted`` is a client's name.

    Raises:
        SessionNotFound: it begins like an id, but is none.
        InvalidRequest: it is neither an id nor a name.
    """
    if wanted.startswith(_ID_START):
        if re.fullmatch(id_pattern("ses"), wanted):
            return SessionId(wanted)
        raise SessionNotFound("You have no such session.")
    if not re.fullmatch(CLIENT_ID, wanted):
        raise InvalidRequest("'session_id' has 1 to 128 of the characters A-Z a-z 0-9 . _ : -", param="session_id")
    return None


@dataclass(slots=True)
class NamePointer:
    """A client's ``name`` for a session of a user and an agent, as a ``SessionPointer``."""

    store: TenantStore
    name: str
    session: SessionId | None

    def point_to(self, session: Session) -> Put:
        free = ITEM_ABSENT if self.session is None else ITEM_ABSENT | Equals("session", self.session)
        return name_write(self.store, session, self.name, free)


async def read_name(store: TenantStore, user: UserId, agent: AgentName, name: str | None) -> NamePointer | None:
    """Return the pointer of ``name``, or None if that is None."""
    if name is None:
        return None
    item = await store.table.get(keys.session_name(store.tenant, user, agent, name))
    return NamePointer(store, name, SessionId(str(item["session"])) if item is not None else None)


def name_write(store: TenantStore, session: Session, name: str, when: Condition | None = None) -> Put:
    """Return the write that gives ``name`` to ``session``."""
    return Put(keys.session_name(store.tenant, session.user, session.agent, name), {"session": session.id}, when)


def name_removal(store: TenantStore, session: Session, name: str) -> Delete:
    """Return the write that removes ``name``. Its condition fails if another session has the name."""
    return Delete(keys.session_name(store.tenant, session.user, session.agent, name), Equals("session", session.id))
