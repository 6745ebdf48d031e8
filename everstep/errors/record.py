"""What can go wrong with the record itself."""

from __future__ import annotations

from everstep.errors.base import EX_DATAERR, EX_NOINPUT, EX_UNAVAILABLE, EX_USAGE, EverstepError


class StoreUrlInvalid(EverstepError):
    """The store URL cannot be understood or its database is not supported."""

    code = "store_url_invalid"
    exit_code = EX_USAGE


class StoreNotFound(EverstepError):
    """There is no record at this place, and what was asked for does not make one."""

    code = "store_not_found"
    exit_code = EX_NOINPUT


class StoreUnavailable(EverstepError):
    """The database file or its folder is missing, read-only, full or locked for too long."""

    code = "store_unavailable"
    exit_code = EX_UNAVAILABLE


class StoreCorrupt(EverstepError):
    """The file is not a SQLite database, is damaged, or belongs to another program."""

    code = "store_corrupt"
    exit_code = EX_DATAERR


class BackupImpossible(EverstepError):
    """The copy of a record could not be made; there is none, and the record is as it was."""

    code = "backup_impossible"
    exit_code = EX_DATAERR


class StoreTooNew(EverstepError):
    """The record was written by a newer version of Everstep."""

    code = "store_too_new"
    exit_code = EX_DATAERR
