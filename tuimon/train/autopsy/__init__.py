"""What went wrong first: the scene of a step, its re-run, and the record of what was found.

Nothing here may change the training: whatever a re-run touches is put back bit for bit.
"""
