"""The database's revisions. They are applied at start; to write one, change ``app/tables.py``,
then run ``python -m migrations "what changes"`` and read what it wrote."""
