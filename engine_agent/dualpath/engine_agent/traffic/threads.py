"""Calling blocking code from the event loop, on a thread that owns it, without losing the types."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


async def on_thread(
    thread: ThreadPoolExecutor,
    function: Callable[Arguments, Result],
    *arguments: Arguments.args,
    **options: Arguments.kwargs,
) -> Result:
    """Run `function` on the executor's thread and await its result."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(thread, lambda: function(*arguments, **options))


async def uninterrupted(awaitable: Awaitable[Result]) -> Result:
    """Await to the end even if cancelled meanwhile (memory is in use); the cancellation then goes on."""
    task = asyncio.ensure_future(awaitable)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
