"""What people write by hand today: FastAPI around a graph with LangGraph's stock saver. `python -m bench.plain_server`.

It has the paths of LangGraph's API that the scenario asks for. A run lives and dies with its request: nothing of it is
queued, told again after a broken connection, or goes on after a restart. SQLite as durable as Everstep's.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import aiosqlite
import uvicorn
from fastapi import FastAPI, Request
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from starlette.responses import StreamingResponse

from bench.served_agent import builder


def make(path: str) -> FastAPI:
    """The application, with its database at a path."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        async with aiosqlite.connect(path) as connection:
            saver = AsyncSqliteSaver(connection)
            await saver.setup()
            await connection.execute("PRAGMA synchronous=FULL")
            await connection.execute("CREATE TABLE IF NOT EXISTS threads (id TEXT PRIMARY KEY)")
            app.state.connection, app.state.graph = connection, builder.compile(checkpointer=saver)
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/threads")
    async def create_thread() -> dict[str, Any]:
        thread_id = str(uuid4())
        await app.state.connection.execute("INSERT INTO threads VALUES (?)", (thread_id,))
        await app.state.connection.commit()
        return {"thread_id": thread_id}

    @app.get("/threads/{thread_id}/state")
    async def get_state(thread_id: str) -> dict[str, Any]:
        found = await app.state.graph.aget_state({"configurable": {"thread_id": thread_id}})
        return {"values": found.values, "next": found.next}

    @app.post("/threads/{thread_id}/runs/wait")
    async def wait(thread_id: str, request: Request) -> Any:
        body = await request.json()
        return await app.state.graph.ainvoke(body["input"], {"configurable": {"thread_id": thread_id}})

    @app.post("/threads/{thread_id}/runs/stream")
    async def stream(thread_id: str, request: Request) -> StreamingResponse:
        body = await request.json()

        async def frames() -> AsyncGenerator[bytes]:
            config = {"configurable": {"thread_id": thread_id}}
            async for chunk in app.state.graph.astream(body["input"], config, stream_mode="custom"):
                yield f"event: custom\ndata: {json.dumps(chunk)}\n\n".encode()
            yield b"event: end\ndata: null\n\n"

        return StreamingResponse(frames(), media_type="text/event-stream")

    return app


if __name__ == "__main__":
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen(2048)
    sys.stdout.write(json.dumps({"url": f"http://127.0.0.1:{listening.getsockname()[1]}"}) + "\n")
    sys.stdout.flush()
    uvicorn.Server(uvicorn.Config(make(sys.argv[1]), log_level="warning", access_log=False, ws="none")).run([listening])
