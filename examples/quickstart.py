"""Three turns of one session against a running cell (`dualpath up` in another terminal).

python examples/quickstart.py
turn 1: 0 hit + 100 miss tokens, 8 generated
turn 2: 64 hit + 64 miss tokens, 8 generated
turn 3: 128 hit + 28 miss tokens, 8 generated
"""

import asyncio
import os

from dualpath.client import Client, Session


async def main() -> None:
    async with Client(os.environ.get("DUALPATH_ADDRESS", "127.0.0.1:7700")) as client:
        session = Session(client)
        for number, append in enumerate((range(100), range(20), range(20)), start=1):
            result = await session.turn(list(append), max_new_tokens=8, forced_tokens=True)
            hit, miss = result.hit_tokens, result.miss_tokens
            print(f"turn {number}: {hit} hit + {miss} miss tokens, {len(result.tokens)} generated")


asyncio.run(main())
