"""Everstep's own errors."""

from __future__ import annotations

from everstep import errors
from everstep.runtime.rules.rule import BROKEN_ANSWER, CODE, INPUT, MISCONFIGURED, Rule

OWN: dict[type[BaseException], Rule] = {
    errors.VerificationFailed: Rule("review", "the verification did not pass"),
    errors.NodeExited: CODE,
    errors.EffectNotRepeated: Rule("review", "a replay took another way than the run before it"),
    errors.EffectInterrupted: Rule("retry", "an effect was interrupted; the next attempt finds out what became of it"),
    errors.ApprovalRejected: Rule("failed", "a person did not approve an effect, and its node did not go another way"),
    errors.ChangeRejected: Rule("failed", "a person rejected the change"),
    errors.ModelUnavailable: Rule("review", "the model cannot be had on this machine"),
    errors.StateNotSerializable: Rule("failed", "the state holds a value that cannot be stored"),
    errors.CheckpointNotFound: Rule("failed", "the checkpoint to begin at is gone"),
    errors.PayloadInvalid: INPUT,
    errors.SecretInPayload: INPUT,
    errors.StoreUnavailable: Rule("retry", "the record could not be reached"),
    errors.LangfuseUnavailable: Rule("retry", "Langfuse could not be reached; a score may have arrived"),
    errors.LangfuseUnusable: Rule("review", "Langfuse is not configured, or refuses the keys or a score"),
    errors.Cancelled: Rule("failed", "the job was cancelled"),
    errors.OptionsInvalid: INPUT,
    errors.InsufficientCredit: Rule("failed", "the credit does not cover the price; nothing was charged or submitted"),
    errors.SubmissionConflict: Rule("failed", "the submission key belongs to another request"),
    errors.GenerationRefused: Rule("failed", "only a submission that failed is tried again"),
    errors.ProviderNotFound: MISCONFIGURED,
    errors.ProviderUnusable: MISCONFIGURED,
    errors.ProviderAnswerInvalid: BROKEN_ANSWER,
    errors.ProviderConflict: Rule(
        "retry", "the provider reports a conflict (409); it may have taken the request before"
    ),
    errors.ProviderTaskMissing: Rule("review", "the provider says that it has no such task"),
    errors.QueryUnsupported: CODE,
    errors.CancelUnsupported: CODE,
    errors.OutsideJob: CODE,
}
