"""Trials: a likely cause tested by replaying the step, on copies, with one thing changed.

Nothing here touches a live tensor; every replay happens inside `autopsy.sandbox`.
"""
