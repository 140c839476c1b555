"""The vocabulary every part shares: records, commands, causes, units and plain text.

Depends on nothing of ours but `errors`; owns no file, socket, thread or screen.
"""
