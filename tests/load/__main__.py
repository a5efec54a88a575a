"""`python tests/load`: see the package. Ends with 1 where a check fails."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]


def main() -> int:
    from load import __doc__ as about
    from load.crowd import Crowd, Plan, running
    from load.report import checks, tables

    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--users", type=int, default=30)
    parser.add_argument("--pages", type=int, default=3)
    parser.add_argument("--model", default=None, help="tiny, or whatever app.py takes")
    parser.add_argument("--thinking", type=float, default=1.0, help="seconds between two requests")
    parser.add_argument("--words", type=int, default=None, help="of the longest prompt")
    parser.add_argument("--keep", type=Path, default=None, help="folder for logs and records")
    chosen = parser.parse_args()
    words = chosen.words or (100 if chosen.model == "tiny" else 700)
    plan = Plan(
        seconds=60 * chosen.minutes,
        users=chosen.users,
        pages=chosen.pages,
        thinking_s=chosen.thinking,
        long_words=words,
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.jsonl"):
            old.unlink()
        with running(folder, chosen.model) as app:
            outcome = Crowd(app, plan, folder).use()
        made = checks(outcome, plan)
    print("\n".join(tables(outcome, plan, made)))
    return 0 if all(check.holds for check in made) else 1


if __name__ == "__main__":
    sys.exit(main())
