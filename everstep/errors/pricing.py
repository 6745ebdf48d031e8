"""What can go wrong with prices of paid work."""

from __future__ import annotations

from everstep.errors.base import EX_CONFIG, EX_USAGE, EverstepError


class PriceListInvalid(EverstepError):
    """A price list is missing, cannot be read, or an entry is not what it can be."""

    code = "price_list_invalid"
    exit_code = EX_CONFIG


class OptionsInvalid(EverstepError, ValueError):
    """What was asked of a model is not in its price list, or out of what that allows."""

    code = "options_invalid"
    exit_code = EX_USAGE
