"""The process beside the training: history, readings, diagnosis and report; no torch, no screen.

It outlives the training, so that a run that was killed still gets its report. Started as
`python -m tuimon.scribe RUN_FOLDER`.
"""
