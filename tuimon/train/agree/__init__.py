"""Lets every rank of a training carry out the same command at the same step.

Ranks agree through the job's own store by one thread each, which runs no torch operation; a
training thread is kept from passing a step only while an agreement about that step is open.
"""
