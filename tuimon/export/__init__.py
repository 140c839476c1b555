"""Other ways out of what a run has left: a report to send, and tables for other programs."""
