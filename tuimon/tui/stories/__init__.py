"""Incidents, batches and crashes told in lines, for the screen and as plain text."""
