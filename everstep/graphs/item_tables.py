"""The tables of items of a record, opened as `langgraph.json` says: how long items are kept, what embeds them."""

from __future__ import annotations

from typing import Any

from langgraph.store.base import TTLConfig, ensure_embeddings

from everstep.checkpoints.items import ItemTables
from everstep.checkpoints.store import Store
from everstep.errors import ConfigInvalid, GraphLoadFailed
from everstep.graphs.configuration import Configuration, GraphEntry, parse_target
from everstep.graphs.importing import import_graph
from everstep.graphs.storage import ItemIndex, Storage


def open_tables(store: Store, storage: Storage, configuration: Configuration | None) -> ItemTables:
    """The tables of items.

    Args:
        store: The record.
        storage: What the configuration says.
        configuration: The file, for what embeds.

    Raises:
        ConfigInvalid: Items are to be found by meaning, and that is not possible here.
    """
    ttl = storage.item_ttl
    kept = TTLConfig(default_ttl=ttl.default_minutes, refresh_on_read=ttl.refresh_on_read, omit_expired=True)
    index = None if storage.item_index is None else _index(storage.item_index, configuration)
    return store.database.item_tables()(store, index, kept)


def _index(index: ItemIndex, configuration: Configuration | None) -> dict[str, Any]:
    return {"dims": index.dims, "fields": list(index.fields), "embed": _embeds(index.embed, configuration)}


def _embeds(name: str, configuration: Configuration | None) -> Any:
    """An object that embeds texts: imported, or made by LangChain for `provider:model`."""
    try:
        if configuration is not None and name.rpartition(":")[0].endswith(".py"):
            found = import_graph(
                GraphEntry("store.index", parse_target(name, configuration.folder)), configuration.folder
            )
            return ensure_embeddings(found)
        return ensure_embeddings(name)
    except ConfigInvalid:
        raise
    except GraphLoadFailed as error:
        raise ConfigInvalid(f"store.index.embed: {error.message}", next_step=error.next_step) from error
    except Exception as error:
        raise ConfigInvalid(
            f"store.index.embed: {name} cannot be used: {error}",
            next_step="install the provider's package, correct the name, or leave store.index out",
        ) from error
