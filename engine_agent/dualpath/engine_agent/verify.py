"""Check turns against a full recompute without any cache: `python -m dualpath.engine_agent.verify < turns.jsonl`.

One JSON object per line, {"prompt": [ids], "generated": [ids]}. Each generated token must be the one the model gives
for everything before it. The last line of output is {"checked": N, "equal": M, "tokens": T}; exit 0 if all are equal.
"""

import argparse
import json
import os
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from dualpath.engine_agent.engines.build import EngineSpec, build_engine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", default="reference")
    parser.add_argument("--engine-options", default="{}", help="options of the engine as JSON")
    parser.add_argument("--progress", action="store_true", help='a line {"done": n} per turn')
    arguments = parser.parse_args()
    engine = build_engine(EngineSpec(arguments.engine, json.loads(arguments.engine_options)))
    checked = equal = tokens = 0
    for line in sys.stdin:
        turn = json.loads(line)
        verdict = engine.verify(tuple(turn["prompt"]), tuple(turn["generated"]))
        checked += 1
        equal += verdict.equal
        tokens += verdict.tokens_checked
        if not verdict.equal:
            print(f"turn {checked}: differs at generated token {verdict.first_mismatch}", file=sys.stderr)
        if arguments.progress:
            print(json.dumps({"done": checked}), flush=True)
    print(json.dumps({"checked": checked, "equal": equal, "tokens": tokens}))
    return 0 if checked == equal else 1


if __name__ == "__main__":
    sys.exit(main())
