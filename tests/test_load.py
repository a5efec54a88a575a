"""A few users on the running app for some seconds. A whole class for five minutes is run by hand:
`python tests/load`.
"""

from __future__ import annotations

from pathlib import Path

from load.crowd import Crowd, Plan, running
from load.report import checks, tables

PLAN = Plan(seconds=12, users=5, pages=0, thinking_s=0.3, asks=12, long_words=100, tokens=24)


def test_a_few_users_at_once_lose_nothing_and_mix_nothing_up(tmp_path: Path) -> None:
    """Among them one who breaks connections, one who makes mistakes, and a rush."""
    with running(tmp_path, "tiny") as app:
        outcome = Crowd(app, PLAN, tmp_path).use()
    made = checks(outcome, PLAN)
    print("\n".join(tables(outcome, PLAN, made)))
    assert [check for check in made if not check.holds] == []
    assert {one.outcome for one in outcome.heard} >= {"finished", "stopped", "said"}
