"""Tasks as the simulated provider shows them, in its own style and in OpenAI's."""

from __future__ import annotations

import hashlib
from typing import Any

from examples.provider_simulator.book import Task

_OPENAI = {"running": "in_progress", "succeeded": "completed", "failed": "failed", "cancelled": "cancelled"}
_ERROR = {"code": "content_refused", "message": "the content was refused"}


def view(task: Task, state: str, base_url: str) -> dict[str, Any]:
    """A task in the style of its kind, as if it were in a state."""
    if task.kind == "generations":
        return _generation(task, state, base_url)
    word, done = _OPENAI[state], state == "succeeded"
    shown: dict[str, Any] = {
        "id": task.id,
        "status": word,
        "model": task.request.get("model", "simulated"),
        "created_at": int(task.made_at),
        "error": _ERROR if state == "failed" else None,
    }
    if task.kind == "videos":
        progress = 100 if done else min(10 * task.polls, 90)
        return {**shown, "object": "video", "progress": progress, "seconds": "4", "size": "720x1280"}
    text = f"made of {task.request.get('input', 'nothing')}"
    message = {"id": f"msg_{task.id[5:17]}", "type": "message", "role": "assistant", "status": "completed"}
    content = [{"type": "output_text", "text": text, "annotations": []}]
    usage = {"input_tokens": 7, "output_tokens": 5, "total_tokens": 12}
    return {
        **shown,
        "object": "response",
        "background": True,
        "metadata": task.request.get("metadata", {}),
        "output": [{**message, "content": content}] if done else [],
        "usage": usage if done else None,
    }


def _generation(task: Task, state: str, base_url: str) -> dict[str, Any]:
    name = hashlib.sha256(task.key.encode()).hexdigest()[:16]
    output = {
        "url": f"{base_url}/files/{name}.bin",
        "media_type": "application/octet-stream",
        "sha256": hashlib.sha256(task.content).hexdigest(),
    }
    return {
        "id": task.id,
        "status": state,
        "reference": task.key,
        "progress": 100 if state == "succeeded" else min(10 * task.polls, 90),
        "output": output if state == "succeeded" else None,
        "error": _ERROR if state == "failed" else None,
    }
