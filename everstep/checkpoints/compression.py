"""Small bytes smaller: deflate with a dictionary of what LangGraph's values have in common, or of a similar value.

A message of a few words is mostly the names of its class and fields, a checkpoint mostly the zeros of its versions; by
itself neither is long enough for deflate to find that out. What is stored stays as it was where this gains nothing.
"""

from __future__ import annotations

import zlib

MOST = 64 * 1024
"""Bytes above which a value stays as it is: packing it would hold up the event loop for milliseconds."""
REACH = 32 * 1024
"""Bytes of what is known that count."""
_RAW = -15

CHECKPOINTS = (
    b"\xa5agent\x81\xafbranch:to:agent\xa5tools\x81\xafbranch:to:tools\xb0updated_channels\x92\xa8messages"
    b"\x81\xa8messages\x92\x91\x92\xacbranch:to:\x92\x87\xa1v\x04\xa2ts\xcf\x00\x06\xa2id\xc4\x10\x1f"
    b"\xaechannel_values\x83\xa8messages\xc0\xaebranch:to:\xc0\xb0channel_versions\x84\xa9__start__\x02"
    b"\xa8messages\xcd\x01\xadversions_seen\x83\xa9__input__\x80\xa9__start__\x81\xa9__start__\x01\xa5\x81"
    b"\xaebranch:to:\xcd\x01\xb0updated_channels\x93\xaebranch:to:\xa8messages\x81\xa8messages\x92\x91\x92\xa8"
)
"""What checkpoints are like, in the form of `lean`. It never changes, as what was stored is read with it."""

VALUES = (
    b"langgraph.types\xa4Send\xa9Interrupt\xa5value\xa2id\xa7Command\xaedocument_contents\xa9image_url\xa4type\xa4text"
    b"langchain_core.messages.system\xadSystemMessage\x86\xa7content\xa6system"
    b"\xc7\xb0\x05\x94\xbclangchain_core.messages.tool\xabToolMessage\x89\xa7content\xa0\xb1additional_kwargs\x80"
    b"\xb1response_metadata\x80\xa4type\xa4tool\xa4name\xa2id\xactool_call_id\xb8toolu_\xa5call_\xa8artifact\xc0"
    b"\xa6status\xa5error\xa7success\xb3model_validate_json"
    b"\x85\xabtoken_usage\x83\xb1completion_tokens\xadprompt_tokens\xactotal_tokens\xb2system_fingerprint\xc0"
    b"\xa8logprobs\xc0\xabstop_reason\xa8end_turn\xa5model\xaamodel_name\xa6gpt-\xa7claude-\xaemodel_provider"
    b"\xa9anthropic\xa6openai\xadfinish_reason\xa4stop\xaatool_calls\xaalc_run--019\xa4run-"
    b"\x91\x84\xa4name\xa4args\x81\xa2id\xa5call_\xa4type\xa9tool_call"
    b"\xaeusage_metadata\x85\xacinput_tokens\xcd\xadoutput_tokens\xcc\xactotal_tokens\xcd"
    b"\xb3input_token_details\x82\xa5audio\x00\xaacache_read\x00\xb4output_token_details\x82\xa5audio\x00\xa9reasoning\x00"
    b"\xc7\x86\x05\x94\xbdlangchain_core.messages.human\xacHumanMessage\x86\xa7content\xb1additional_kwargs\x80"
    b"\xb1response_metadata\x80\xa4type\xa5human\xa4name\xc0\xa2id\xd9$\xb3model_validate_json"
    b"\xb1additional_kwargs\x80\xb1response_metadata\x80\xa4type\xa2ai\xa4name\xc0\xa2id\xd9$-4\xaatool_calls\x90"
    b"\xb2invalid_tool_calls\x90\xaeusage_metadata\xc0\xb3model_validate_json"
    b"\x91\xc8\x04\xbb\x05\x94\xbalangchain_core.messages.ai\xa9AIMessage\x89\xa7content\xda\x03"
)
"""What values of channels are like. It never changes either: other words need other types of values."""


def deflated(data: bytes, known: bytes = VALUES) -> bytes:
    """Compress.

    Args:
        data: What to compress.
        known: What it is probably like; its last `REACH` bytes count.
    """
    packer = zlib.compressobj(zlib.Z_DEFAULT_COMPRESSION, zlib.DEFLATED, _RAW, zlib.DEF_MEM_LEVEL, zdict=known)
    return packer.compress(data) + packer.flush()


def inflated(data: bytes, known: bytes = VALUES) -> bytes:
    """The reverse.

    Raises:
        zlib.error: It was not made by `deflated`, or from something else than what was known.
    """
    unpacker = zlib.decompressobj(_RAW, zdict=known)
    return unpacker.decompress(data) + unpacker.flush()
