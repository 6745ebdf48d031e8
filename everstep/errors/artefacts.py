"""What can go wrong with what a provider made."""

from __future__ import annotations

from everstep.errors.base import EX_DATAERR, EverstepError


class ArtefactInvalid(EverstepError):
    """What a provider made cannot be kept: its address may not be used, it is gone, too large, or not what was told."""

    code = "artefact_invalid"
    exit_code = EX_DATAERR
